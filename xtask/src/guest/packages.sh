# Packages on a host whose first process is systemd: their scripts start units, units are killed, upgraded and removed.
(
packages=$CGPU_PACKAGES
# Not the programs that were built beside them.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# cgpu's own unit is here without a package, and the file systems of this machine are not the guest's.
systemctl stop cgpu.service && rm /etc/systemd/system/cgpu.service && systemctl daemon-reload
: > /etc/fstab
# Where services may not be started, as in an image that is built, packages start none.
rm -f /usr/sbin/policy-rc.d
within() {
    for try in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 1; done
    echo "not within 300 s: $*"
}
states() { for unit; do echo "$unit=$(systemctl is-active cgpu$unit.service)"; done | tr '\n' ' '; }
pid() { systemctl show --property MainPID --value "cgpu$1.service"; }
# Whether a unit has another process than that one, and is ready.
another() { [ "$(systemctl is-active "cgpu$1.service")" = active ] && [ "$(pid "$1")" != "$2" ]; }
# A static busybox cannot look up names: its wget ends by SIGSEGV.
get() { bash -c 'exec 3<> /dev/tcp/127.0.0.1/9402 && printf "GET $0 HTTP/1.0\r\n\r\n" >&3 && timeout 60 cat <&3' "$1"; }
metrics() { get /metrics; }
has_container() { metrics | grep -q '^cgpu_memory_quota_bytes{.*} 1'; }
is_mounted() { grep -q ' /run/cgpu/cgpu_km fuse' /proc/mounts; }

echo "without cgpu: $(states '' -agent -sim -tree)"
dpkg -i $packages/1/*.deb 2>&1 | grep -v '^(Reading'
within another -agent 0
echo "installed: $(states '' -agent -sim -tree)"
echo "at boot: $(cd /etc/systemd/system/multi-user.target.wants && echo cgpu*)"
echo "group: $(cat /proc/$(pid '')/cgroup)"
systemctl enable --now cgpu-sim.service cgpu-tree.service
echo "enabled: $(states '' -agent -sim -tree)"
cgpu cards
cgpu run --memory 1Gi --compute 30 -- cgpu-burn alloc 512Mi --hold 100000 & burn=$!
within sh -c 'cgpu ps --quiet | grep .'
for process in $(pgrep cgpu-broker); do echo "a broker: $(cat /proc/$process/cgroup)"; done
within has_container
echo "ready: $(get /readyz | head -n 1)"
metrics | grep '^cgpu_memory_[a-z]*_bytes\|^cgpu_card_healthy'
within is_mounted
ls /run/cgpu/cgpu_km /run/cgpu/cgpu_km/0
for file in $(find /run/cgpu/cgpu_km -name memsize); do
    echo "memsize: $(cat $file)"
    echo 1536Mi > $file
done
within sh -c 'cgpu ps | grep 1536'
cgpu ps
cgpu run --memory 100Gi -- true; echo "a start of 100 GiB ends with $?"
journal() { journalctl --no-pager -o json CGPU_EVENT=refused | grep -o '"\(MESSAGE\|CGPU_[A-Z]*\)":"[^"]*"' | sed 's/^/journal: /'; }
within sh -c 'journalctl --no-pager -o json CGPU_EVENT=refused | grep .'
journal
for unit in -agent -tree; do
    systemd-analyze --no-pager security cgpu$unit.service | tail -n 1
    former=$(pid $unit)
    kill -9 $former
    within another $unit $former
done
within is_mounted
within has_container
echo "after SIGKILL: $(states -agent -tree), $(find /run/cgpu/cgpu_km -name memsize | wc -l) containers in the tree"
agent=$(pid -agent) tree=$(pid -tree) sim=$(pid -sim) own=$(pid '')
is_left_alone() { [ "$(pid -sim)" = "$sim" ] && [ "$(pid '')" = "$own" ] && [ "$(states '' -sim)" = '=active -sim=active ' ]; }
# Every program of ours has this library open. It becomes another file, as by its package.
for library in /usr/lib/*-linux-gnu/libgcc_s.so.1; do cp --preserve $library $library.new && mv $library.new $library; done
# The container runs in this script's own unit, whose restart would begin all this anew.
echo '$nrconf{override_rc}{qr(^guest\.service$)} = 0;' > /etc/needrestart/conf.d/guest.conf
needrestart -r a -m a < /dev/null
within another -agent $agent
is_left_alone && echo "libraries upgraded: neither the simulator nor the delegated group was restarted"
within is_mounted
within has_container
agent=$(pid -agent) tree=$(pid -tree)
dpkg -i $packages/2/*.deb 2>&1 | grep -v '^(Reading'
within another -agent $agent
within another -tree $tree
is_left_alone && echo "upgraded: neither the simulator nor the delegated group was restarted"
cgpu upgrade
echo "after upgrade: $(states '' -agent -sim -tree), $(cgpu ps --quiet | wc -l) container"
systemctl stop cgpu-agent.service
dpkg -i $packages/2/cgpu-agent*.deb 2>&1 | grep -v '^(Reading'
echo "an agent that was stopped: $(states -agent)"
# Before systemd 254 it cannot be started again while there are brokers in its group.
systemctl stop cgpu.service
echo "without the delegated group's unit: $(states ''), $(cgpu ps --quiet | wc -l) container"
dpkg -r cgpu-sim; echo "removal under a container ends with $?"
kill $burn; wait $burn
within sh -c '! cgpu ps --quiet | grep .'
dpkg -P cgpu-agent cgpu-sim kubectl-cgpu cgpu 2>&1 | grep -v '^(Reading'
echo "units left: $(systemctl list-units --all --no-legend 'cgpu*' | wc -l), failed: $(systemctl list-units --failed --no-legend 'cgpu*' | wc -l)"
echo "left: $(ls -d /run/cgpu* /var/lib/cgpu /etc/cgpu /sys/fs/cgroup/system.slice/cgpu* /etc/systemd/system/*/cgpu* 2> /dev/null | wc -l) folders, \
$(pgrep -c '^cgpu') processes, $(grep -c cgpu /proc/mounts) mounts"
) < /dev/null 2>&1 | cat
