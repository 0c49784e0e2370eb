# Engines in the domains that the distribution's policy gives them, and containers in theirs.
(
echo "enforcing: $(getenforce), script: $(id -Z)"
start_engines ', "selinux-enabled": true' 'enable_selinux = true'

# The policy as the distribution has it. It is loaded in one write.
load() { dd if=$1 of=/sys/fs/selinux/load bs=64M 2> /dev/null; }
doctor() { cgpu doctor --json | tr -d '\n' | grep -o '"[^"]*may trace [^"]*"\|"[^"]*trace no [^"]*"'; }
load /root/policy-without-cgpu
doctor
run_docker; echo "docker without the module: starts with $?"
docker rm -f one
echo "denied without the module: $(dmesg -c | grep -c 'avc: .denied.*ptrace')"
load /etc/selinux/default/policy/policy.$(cat /sys/fs/selinux/policyvers)
doctor

of_docker
of_podman
of_pods
left
# Of Debian's own programs its policy denies some things without cgpu too: what they are is in the output.
dmesg | grep 'avc: .denied'
ours='comm="\(cgpu[^"]*\|containerd-shim\|runc[^"]*\|tokio[^"]*\|calls\|governor\|dockerd\)"'
echo "denied of ours: $(dmesg | grep 'avc: .denied' | grep -c "$ours")"
) < /dev/null 2>&1 | cat
