# In a root of Debian 12 with its containerd and runc. `key: value` lines are read by the test beside this file.
mkdir -p /run/c /srv/image/bin /srv/bundle
cp /packages/busybox /srv/image/bin/busybox
cp /packages/static-cgpu-burn /srv/image/bin/cgpu-burn
ln -s busybox /srv/image/bin/sleep
dpkg -i /packages/*.deb > /run/former.log 2>&1; echo "former installed: $?"
printf 'container_tools = "/usr/lib/cgpu/static/cgpu"\n' > /etc/cgpu/cgpu.toml

cgpu-sim --profile two-ada > /run/sim.log 2>&1 & sim=$!
for i in $(seq 200); do grep -q ready /run/sim.log && break; sleep 0.1; done
cat > /run/c/config.toml <<END
version = 2
root = "/run/c/root"
state = "/run/c/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "/run/c/containerd.sock"
END
containerd --config /run/c/config.toml > /run/c/log 2>&1 &
export CONTAINERD_ADDRESS=/run/c/containerd.sock
for i in $(seq 200); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done

# Three containers of the former version: one under load, one whose shim will be gone, one by the wrapper.
start() { ctr run -d --rootfs --runtime io.containerd.cgpu.v2 --annotation "cgpu.io/memory=$1" /srv/image "$2" /bin/sleep 100000; }
start 2Gi load
start 1Gi lost
cd /srv/bundle && runc spec && cp -r /srv/image rootfs
sed -i 's/"terminal": true/"terminal": false/
    s|"sh"$|"/bin/sleep", "100000"|
    s|"ociVersion"|"annotations": {"cgpu.io/memory": "1Gi"}, "ociVersion"|' config.json
cgpu-runtime create --bundle . wrapped > create.log 2>&1 && cgpu-runtime start wrapped
cd /
ctr tasks exec --exec-id churn load /bin/cgpu-burn --json churn --seconds "$SECONDS_OF_LOAD" --processes 2 \
    --largest 256Mi > /run/load.json 2> /run/load.err & load=$!

program() { ls -i -L "/proc/$(cgpu ps --json | tr ',{}' '\n' | grep broker_pid | head -n 1 | tr -dc 0-9)/exe" | tr -dc '0-9 ' | cut -d' ' -f1; }
before=$(program)

dpkg --force-confold -i /newer/*.deb > /run/new.log 2>&1; echo "new installed: $?"

# The new programs beside the old brokers.
echo "old broker, new cgpu: healthy: $(cgpu ps --json | tr ',{}' '\n' | grep -c '"health": *"ok"')"
cgpu set load --memory 3Gi > /run/set.log 2>&1; echo "old broker, new cgpu: set: $?"
smi() { ctr tasks exec --exec-id "$1" load /usr/bin/cgpu smi 2>&1 | grep -c '/3072 MiB'; }
echo "old shim, old broker: 3072 MiB: $(smi old)"
cgpu-runtime exec wrapped /bin/cgpu-burn alloc 512Mi > /dev/null; echo "old broker, new cgpu-runtime: exec: $?"
cgpu-runtime delete --force wrapped; echo "old broker, new cgpu-runtime: delete: $?"
# containerd starts the new shim to clean up after an old one that is gone.
kill -9 "$(cut -d' ' -f4 "/proc/$(ctr tasks ls | grep '^lost ' | tr -s ' ' | cut -d' ' -f2)/stat")"
for i in $(seq 100); do cgpu ps -q | grep -q lost || break; sleep 0.1; done
echo "old broker, new shim: delete: $(cgpu ps -q | grep lost || echo gone)"
ctr containers rm lost

# From old to new, then new ones again and again.
failed=0
: > /run/pauses
for i in $(seq "$UPGRADES"); do
    cgpu upgrade --json > /run/upgrade.json 2> /run/upgrade.err || { failed=$((failed + 1)); cat /run/upgrade.err; }
    tr ',{}' '\n' < /run/upgrade.json | grep pause_us | tr -dc '0-9\n' >> /run/pauses
done
echo "upgrades that failed: $failed"
echo "pauses: $(tr '\n' ' ' < /run/pauses)"
echo "brokers' programs before and after: $before $(program)"
echo "old shim, new broker: 3072 MiB: $(smi new)"
wait $load; echo "load ended: $?"
echo "load: $(tr -d '\n' < /run/load.json)"; cat /run/load.err
ctr tasks exec --exec-id over load /bin/cgpu-burn alloc 4Gi > /dev/null; echo "old shim, new broker: 4 GiB are refused: $?"

ctr tasks rm --force load; ctr containers rm load
echo "grants left: $(cgpu ps -q)"
kill $sim; wait $sim
dpkg -r cgpu-agent cgpu-sim cgpu > /run/remove.log 2>&1; echo "removed: $?"
cat /run/former.log /run/new.log /run/set.log /run/remove.log
tail -n 5 /run/c/log
