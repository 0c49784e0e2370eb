# A host with systemd that boots again under docker's containers: in order once, and once by losing its power.
log=/run/results/reboots.log
boot=$(cat /var/lib/boot 2> /dev/null || echo 0)
echo $((boot + 1)) > /var/lib/boot
(
programs=${PATH%%:*}
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
packages=$CGPU_PACKAGES
within() {
    for try in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 1; done
    echo "not within 300 s: $*"
}
running() { docker ps --format '{{.Names}}' | sort | tr '\n' ' '; }
runs() { [ "$(running)" = "$1" ]; }
# A container's largest allocations in GiB: what it is to get, and what it is not.
alloc() {
    docker exec $1 cgpu-burn alloc ${2}Gi > /dev/null 2>&1; below=$?
    docker exec $1 cgpu-burn alloc ${3}Gi > /dev/null 2>&1; above=$?
    echo "boot $boot: $1: $2 GiB ends with $below, $3 GiB with $above"
}
set_again() {
    cgpu set always --memory 6Gi > /dev/null
    alloc always 5 7
}
groups() { for process in $(pgrep cgpu-broker); do cat /proc/$process/cgroup; done | sort -u; }
report() {
    echo "boot $boot: after $1: $(running)"
    alloc always 3 5
    alloc unless-stopped 1 3
    echo "boot $boot: plain: $(docker exec plain sh -c 'ls /dev' | grep -c nvidia) nodes"
    echo "boot $boot: $(cgpu ps --quiet | wc -l) vGPUs, $(groups | grep -c '^0::/system.slice/cgpu.service/') groups of theirs, $(groups | wc -l) in all"
    cgpu ps
    cgpu doctor --repair > /run/doctor 2>&1
    echo "boot $boot: doctor ends with $?, $(grep -o 'nothing was left behind' /run/doctor || cat /run/doctor)"
    echo "boot $boot: failed units: $(systemctl list-units --failed --no-legend 'cgpu*' 'docker*' 'containerd*' | wc -l)"
}
if [ $boot = 0 ]; then
    : > /etc/fstab
    rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update
    mkdir -p /etc/docker
    echo '{"bridge": "none", "iptables": false}' > /etc/docker/daemon.json
    dpkg -i $packages/1/*.deb 2>&1 | grep -v '^(Reading'
    cgpu install --engine docker
    systemctl enable cgpu-sim.service docker.service containerd.service 2>&1
fi
echo "boot $boot: at boot: $(cd /etc/systemd/system/multi-user.target.wants && echo cgpu* containerd* docker*)"
# As the default target does: all in one, so that systemd orders them.
systemctl start $(cd /etc/systemd/system/multi-user.target.wants && echo cgpu* containerd* docker*)
case $boot in
0)
    mkdir -p /image/bin
    cp /bin/busybox $programs/static/cgpu-burn /image/bin
    for name in sh ls sleep; do ln -s busybox /image/bin/$name; done
    tar -C /image -c . | docker import - image
    run() { name=$1; shift; docker run -d --network none --name $name "$@" image sleep 100000; }
    run always --restart always --runtime cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=4 -e ALIYUN_COM_GPU_MEM_DEV=24
    run unless-stopped --restart unless-stopped --runtime cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=2 -e ALIYUN_COM_GPU_MEM_DEV=24
    run plain --restart always --runtime cgpu
    run by-hand --restart no --runtime cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=2 -e ALIYUN_COM_GPU_MEM_DEV=24
    run stopped --restart unless-stopped --runtime cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=1 -e ALIYUN_COM_GPU_MEM_DEV=24
    docker stop -t 0 stopped
    alloc always 3 5
    set_again
    touch /run/results/again
    sync
    systemctl reboot
    sleep 3600
    ;;
1)
    within runs 'always plain unless-stopped '
    report 'systemctl reboot'
    set_again
    touch /run/results/again
    sync
    echo b > /proc/sysrq-trigger
    sleep 3600
    ;;
2)
    within runs 'always plain unless-stopped '
    report 'a loss of power'
    cgpu events --all 2>&1 | tail -n 40
    docker start by-hand
    alloc by-hand 1 3
    docker rm -f $(docker ps --all --quiet)
    within sh -c '! cgpu ps --quiet | grep .'
    cgpu uninstall
    dpkg -P cgpu-agent cgpu-sim kubectl-cgpu cgpu 2>&1 | grep -v '^(Reading'
    echo "daemon.json: $(cat /etc/docker/daemon.json)"
    echo "left: $(ls -d /run/cgpu* /var/lib/cgpu /etc/cgpu /sys/fs/cgroup/system.slice/cgpu* 2> /dev/null | wc -l) folders, \
$(pgrep -c '^cgpu') processes, $(grep -c cgpu /proc/mounts) mounts"
    ;;
esac
) < /dev/null 2>&1 | cat >> $log
cat $log
