# What ./quickstart and ./test share: packages and builds. Sourced, from the top folder of the tree.

# Packages that every build needs.
BUILD_PACKAGES=(build-essential cmake ninja-build pkg-config libzmq3-dev libczmq-dev
    libopenblas-openmp-dev libmsgpack-dev libcriterion-dev libjansson-dev libxxhash-dev libmicrohttpd-dev)

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# need_packages NAME...: says which are missing, then installs those, and only those.
need_packages() {
    local package missing=() as_root=()
    command -v dpkg-query >/dev/null ||
        die "this is not Debian: install the equivalents of: $*"
    for package in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
    if [[ ${#missing[@]} -eq 0 ]]; then
        echo "All packages that this needs are installed."
        return
    fi
    echo "These Debian packages are missing and will be installed with apt-get: ${missing[*]}"
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null ||
            die "only root can install packages, and there is no sudo: run as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    # The empty array needs this form under `set -u` in older shells.
    ${as_root[@]+"${as_root[@]}"} apt-get update -qq ||
        die "apt-get update failed: is there a network?"
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get could not install: ${missing[*]}"
}

# build PRESET [TARGET]: configures and builds all, or one target; the output is shown only if it fails.
build() {
    local log="build/$1.log"
    mkdir -p build
    say "building (cmake --preset $1; log: $log)"
    { cmake --preset "$1" && cmake --build --preset "$1" --target "${2:-all}" -j "$(nproc)"; } >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        die "the build failed; the whole log is in $log"
    }
}
