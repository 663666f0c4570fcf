#!/usr/bin/env bash
# Boots a kernel under QEMU and runs a script in it; below it lie the host's files, read-only.
#
#   KDIR=FOLDER guest-boot.sh [-m "MODULE ..."] [-q "QEMU ARGUMENTS"] [-M MEMORY] [-t SECONDS] SCRIPT
#
# FOLDER is a Debian kernel package as `dpkg -x` lays it out; a module may have a parameter behind it, `nvme-core:multipath=N`. What the script prints is printed here, and
# its exit status is ours; 125 if the guest did not get so far. The processor is emulated, so that neither
# root nor /dev/kvm is needed and every machine does the same.
set -euo pipefail

fail() { printf 'guest-boot.sh: %s\n' "$*" >&2; exit 125; }

modules="9p 9pnet_virtio" qemu_arguments="" memory=1G seconds=120
while getopts m:q:M:t: option; do
    case $option in
    m) modules="$modules $OPTARG" ;;
    q) qemu_arguments=$OPTARG ;;
    M) memory=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
script=${1:?the script to run in the guest}
kernel_folder=${KDIR:?a folder made by dpkg -x of a kernel package}

version=$(ls "$kernel_folder/lib/modules") || fail "$kernel_folder has no lib/modules"
# Once for a kernel; of two tests at once each writes the same index.
if [ ! -f "$kernel_folder/lib/modules/$version/modules.dep.bin" ]; then
    depmod -b "$kernel_folder" "$version"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,sbin,proc,sys,dev,tmp,host,modules}
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$script" "$root/script"

# The modules, each after those it needs, in one folder; a parameter is for the last of these. One that is built into this kernel
# has no file.
for module in $modules; do
    parameter=${module#"${module%%:*}"}
    modprobe -d "$kernel_folder" -S "$version" --show-depends "${module%%:*}" 2>/dev/null |
        sed -n "s/^insmod \([^ ]*\).*/\1 ${parameter#:}/p" | sed '$!s/ .*//' || true
done | while read -r path parameter; do
    name=$(basename "$path" .xz)
    [ -z "$parameter" ] || echo "$parameter" >"$root/modules/$name.parameter"
    if [ ! -f "$root/modules/$name" ]; then
        case $path in
        *.xz) xz -dc "$path" >"$root/modules/$name" ;;
        *) cp "$path" "$root/modules/$name" ;;
        esac
        echo "$name" >>"$root/modules/order"
    fi
done

cat >"$root/init" <<'INIT'
#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
for module in $(cat /modules/order); do
    insmod /modules/$module $(cat /modules/$module.parameter 2>/dev/null) || echo "insmod $module failed"
done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host
for folder in proc sys dev; do mount -o rbind /$folder /host/$folder; done
for folder in tmp run mnt; do mount -t tmpfs none /host/$folder; done
cp /script /host/tmp/script
echo GUEST-START
chroot /host /usr/bin/env -i HOME=/root TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/bash /tmp/script
echo "GUEST-EXIT $?"
sync
echo o >/proc/sysrq-trigger
sleep 10
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

boot() {
    # shellcheck disable=SC2086 # the caller's arguments are several words
    timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -M q35 -m "$memory" -smp 2 \
        -nodefaults -display none -no-reboot -serial stdio \
        -kernel "$(ls "$kernel_folder"/boot/vmlinuz-*)" -initrd "$work/initrd" \
        -append "console=ttyS0 panic=-1 quiet loglevel=3 mitigations=off nokaslr tsc=reliable no_timer_check" \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=host,mount_tag=host $qemu_arguments \
        </dev/null 2>"$work/errors" | tr -d '\r' >"$work/said" || true
}

boot
# An emulated kernel panics while it starts, once in many boots: nothing of the script has run then.
if grep -q "Kernel panic" "$work/said" && ! grep -q GUEST-START "$work/said"; then
    boot
fi

sed -n '/GUEST-START/,/GUEST-EXIT/{/GUEST-/!p}' "$work/said"
status=$(sed -n 's/.*GUEST-EXIT \([0-9]*\).*/\1/p' "$work/said")
if [ -z "$status" ]; then
    tail -n 20 "$work/said" "$work/errors" >&2
    fail "the guest did not come to the end of its script within $seconds s"
fi
exit "$status"
