module crictl-for-tests

go 1.24.1

require sigs.k8s.io/cri-tools v1.34.0
