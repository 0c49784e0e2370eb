# Of a whole host: engines as their distribution ships them, each with a container that has a vGPU.
label() { tr -d '\0' < /proc/$1/attr/current; }
# What a distribution's engines are to be told: docker, and containerd's CRI.
start_engines() {
    mkdir -p /etc/docker /etc/containerd
    echo "{\"bridge\": \"none\", \"iptables\": false$1}" > /etc/docker/daemon.json
    cat > /etc/containerd/config.toml << end
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/image:latest"
$2
end
    ! command -v restorecon > /dev/null || restorecon -RF /etc/docker /etc/containerd
    cgpu install | grep -v '^    '
    systemctl start cgpu.service cgpu-sim.service cgpu-agent.service containerd.service docker.service
    echo "failed units: $(systemctl list-units --failed --no-legend 'cgpu*' 'docker*' 'containerd*' | wc -l)"
    for name in dockerd containerd cgpu-sim cgpu-agent; do echo "$name: $(label $(pgrep -o -x $name))"; done
    mkdir -p /image/bin
    cp /bin/busybox /root/cgpu-burn /image/bin
    for name in sh cat ls sleep; do ln -s busybox /image/bin/$name; done
    tar -C /image -c . | docker import --change 'CMD ["/bin/sleep", "100000"]' - image
}
request='--annotation cgpu.io/memory=1Gi --annotation cgpu.io/compute=30'
run_docker() { docker run -d --network none --name one --runtime cgpu $request image; }
checks() {
    engine=$1
    inside() { name=$1; shift; exec_in "$@" 2>&1 | sed "s/^/$engine: $name: /"; echo; }
    inside label cat /proc/self/attr/current
    inside below cgpu-burn alloc 512Mi
    inside above cgpu-burn alloc 2Gi
    inside smi cgpu smi
    # As an admin may at any time: what a container reads keeps its label.
    ! command -v restorecon > /dev/null || restorecon -RF /run/cgpu
    inside share cat /dev/cgpu-slice.json
    cgpu set $2 --memory 2Gi
    inside resized cgpu-burn alloc 1500Mi
    for process in $(pgrep cgpu-broker); do echo "$engine: broker: $(label $process) $(cat /proc/$process/cgroup)"; done
    echo "$engine: record: $(ls -Z $(find /run/cgpu -name slice.json))"
    cgpu ps
}
of_docker() {
    run_docker
    exec_in() { docker exec one "$@"; }
    checks docker one
    docker rm -f one
}
of_podman() {
    tar -C /image -c . | podman import - localhost/image
    podman run -d --network none --name one --runtime cgpu $request localhost/image sleep 100000
    exec_in() { podman exec one "$@"; }
    checks podman one
    podman rm -f -t 0 one
}
of_pods() {
    docker save image | ctr -n k8s.io images import -
    echo '{"metadata": {"name": "pod", "namespace": "default", "uid": "pod"}, "annotations": {"cgpu.io/memory": "1Gi", "cgpu.io/compute": "30"},
        "linux": {"security_context": {"namespace_options": {"network": 2}}}}' > /root/pod.json
    # What a kubelet hides.
    echo '{"metadata": {"name": "one"}, "image": {"image": "docker.io/library/image:latest"}, "linux": {"security_context": {"namespace_options": {"network": 2},
        "masked_paths": ["/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
            "/proc/timer_list", "/proc/timer_stats", "/sys/firmware"],
        "readonly_paths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]}}}' > /root/one.json
    touch /etc/crictl.yaml
    export CONTAINER_RUNTIME_ENDPOINT=unix:///run/containerd/containerd.sock
    crictl() { /root/crictl --timeout 120s "$@"; }
    pod=$(crictl runp --runtime cgpu /root/pod.json)
    container=$(crictl create $pod /root/one.json /root/pod.json)
    crictl start $container
    exec_in() { crictl exec $container "$@"; }
    checks pod $container
    crictl rmp -f $pod
}
left() {
    sleep 5
    echo "left: $(find /run/cgpu/vgpus -name grant.json | wc -l) grants, $(pgrep -c cgpu-broker) brokers"
}
