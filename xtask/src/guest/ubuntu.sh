# Engines of Ubuntu's under the profiles that it ships: one for runc, which names it and confines nothing, and those of containers.
(
start_engines
dpkg-query --show containerd docker.io runc apparmor
echo "user namespaces are restricted: $(sysctl -n kernel.apparmor_restrict_unprivileged_userns)"
grep '^\(runc\|crun\|podman\|docker-default\|cri-containerd\)' /sys/kernel/security/apparmor/profiles | sed 's/^/profile: /'
dmesg -c > /dev/null
of_docker
of_pods
left
dmesg | grep 'apparmor="DENIED"'
echo "denied: $(dmesg | grep -c 'apparmor="DENIED"')"
) < /dev/null 2>&1 | cat
