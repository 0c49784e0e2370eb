//! A container with a vGPU under SELinux that enforces, with the distribution's policy.

use super::steps::Step;

/// All in one: a domain that enforces may not write to the folder that the guest shares with this machine.
pub(super) const STEPS: &[Step] = &[Step::Script(
    "SELinux: a container with a vGPU",
    SCRIPT,
    &[
        "enforcing: 1",
        "label: system_u:system_r:container_t:s0:c1,c2",
        "below: alloc: 512 MiB",
        "above: alloc: 0 MiB (0 bytes) in 0 pieces, then NV01_MEMORY_LOCAL_USER answered NV_ERR_NO_MEMORY",
        "smi: 0    Simulated RTX 4090  00000000:01:00.0  0/1024 MiB  fixed 30 %",
        "resized: alloc: 1500 MiB",
        "record: {\"version\":1",
        "source: system_u:object_r:container_file_t:s0:c1,c2",
        "left: 0 grants, 0 brokers",
        "denied: 0",
    ],
)];

/// The root's files have no labels, since 9p keeps none, so that what a container needs is on file systems in memory with the labels that
/// a host gives: programs, the container's root, and the nodes of simulated cards, which are files here.
const SCRIPT: &str = r#"(
mount -t selinuxfs selinuxfs /sys/fs/selinux
rm -rf /etc/selinux && cp -r $CGPU_CACHE/selinux/etc/selinux /etc/selinux
dd if=/etc/selinux/default/policy/policy.33 of=/sys/fs/selinux/load bs=8M 2> /dev/null
files=system_u:object_r:container_file_t:s0:c1,c2
mkdir -p /bundle /tools /run/cgpu
mount -t tmpfs -o context=\"$files\" bundle /bundle
mount -t tmpfs -o context=system_u:object_r:bin_t:s0 tools /tools
programs=$(dirname $(command -v cgpu-runtime))
cp $programs/static/cgpu /tools/cgpu
mkdir -p /bundle/rootfs/bin /bundle/rootfs/usr/bin /bundle/rootfs/proc /bundle/rootfs/dev /bundle/rootfs/sys
cp $(command -v busybox) $programs/static/cgpu-burn /bundle/rootfs/bin/
for name in sh cat sleep; do ln -s busybox /bundle/rootfs/bin/$name; done
cat > /run/cgpu.toml << end
runc = "$(command -v runc)"
container_tools = "/tools/cgpu"
[broker]
path = "$programs/cgpu-broker"
[driver]
kind = "sim"
end
export CGPU_CONFIG=/run/cgpu.toml
cgpu-sim --profile two-ada > /run/sim.log 2>&1 &
for try in $(seq 60); do [ -S /run/cgpu/sim/sim.sock ] && break; sleep 1; done
chcon -R -t container_file_t -l s0 /run/cgpu/sim/dev
cd /bundle && runc spec
sed -i 's/"terminal": true/"terminal": false/; s/"noNewPrivileges": true/"noNewPrivileges": false/; s/"sh"$/"sleep", "100000"/' config.json
sed -i 's/"ociVersion"/"annotations": {"cgpu.io\/memory": "1Gi", "cgpu.io\/compute": "30"}, "ociVersion"/' config.json
sed -i 's/"process": {/"process": {"selinuxLabel": "system_u:system_r:container_t:s0:c1,c2",/' config.json
sed -i "s/\"linux\": {/\"linux\": {\"mountLabel\": \"$files\",/" config.json
dmesg -c > /dev/null
echo 1 > /sys/fs/selinux/enforce
echo "enforcing: $(cat /sys/fs/selinux/enforce)"
inside() { name=$1; shift; cgpu-runtime exec a "$@" 2>&1 | sed "s/^/$name: /"; echo; }
cgpu-runtime create --bundle /bundle a && cgpu-runtime start a
inside label cat /proc/self/attr/current
inside below cgpu-burn alloc 512Mi
inside above cgpu-burn alloc 2Gi
inside smi sh -c 'cgpu smi'
inside record cat /dev/cgpu-slice.json
echo "source: $(ls -Z $(find /run/cgpu -name slice.json))"
cgpu set a --memory 2Gi
inside resized cgpu-burn alloc 1500Mi
cgpu-runtime kill a KILL
sleep 5
cgpu-runtime delete --force a
sleep 5
echo "left: $(find /run/cgpu/vgpus -name grant.json | wc -l) grants, $(pgrep -c cgpu-broker) brokers"
dmesg | grep 'avc:  denied'
echo "denied: $(dmesg | grep -c 'avc:  denied')"
echo 0 > /sys/fs/selinux/enforce
) < /dev/null 2>&1 | cat"#;
