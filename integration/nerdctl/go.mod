module nerdctl-for-tests

go 1.23

require github.com/containerd/nerdctl/v2 v2.0.3
