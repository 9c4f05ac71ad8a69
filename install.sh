#!/bin/sh
# ./install.sh VENV TORCH ARGUMENTS: makes the environment VENV where it is missing, and installs ARGUMENTS into it,
# by uv where that is on PATH, else by pip.
# TORCH is "index" for the package index's build (PyPI's brings CUDA), or "fit" for the build for CPUs on a machine
# without an NVIDIA driver, if PyTorch's own index answers: it alone has that build.
set -eu
venv=$1
torch=$2
shift 2
cpu_index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
answers="import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)"

uv=$(command -v uv || true)
if [ ! -x "$venv/bin/python" ]; then
    echo "making $venv"
    if [ -n "$uv" ]; then
        uv venv --quiet --seed --python "$PYTHON" "$venv"
    else
        "$PYTHON" -m venv "$venv"
    fi
fi

if [ "$torch" = index ]; then
    echo "installing into $venv: $*"
elif command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; then
    torch=index
    echo "installing into $venv, with torch for GPUs: 3 GB to download, 7 GB on disk"
elif "$venv/bin/python" -c "$answers" "$cpu_index/torch/" 2>/dev/null; then
    echo "installing into $venv, with torch for CPUs: 0.5 GB to download, 2.5 GB on disk"
else
    torch=index
    echo "installing into $venv, with the package index's torch, as $cpu_index does not answer."
    echo "PyPI's brings CUDA: 3 GB to download, 7 GB on disk."
fi

[ -n "$uv" ] || echo "pip's last step, Installing collected packages, prints nothing for a minute or more"
if [ -n "$uv" ]; then
    [ "$torch" = index ] || set -- --torch-backend cpu "$@"
    exec uv pip install --python "$venv/bin/python" "$@"
fi
pip() { "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }
# the pip that Python brings may be years old
pip --quiet --upgrade pip
if [ "$torch" = fit ]; then
    # From PyTorch's index torch alone: with two indexes of equal rank, pip would take any package from the one that
    # offers the higher version.
    if [ "$1" = -c ]; then
        pip --no-deps --index-url "$cpu_index" -c "$2" torch
    else
        pip --no-deps --index-url "$cpu_index" torch
    fi
fi
pip "$@"
