module containerd-for-tests

go 1.26

require github.com/containerd/containerd/v2 v2.2.9
