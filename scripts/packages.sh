# Debian packages: which are needed, which are missing, and getting them. Sourced.

build_packages=(build-essential cmake ninja-build pkg-config
    libjansson-dev libyaml-dev libxxhash-dev libcmocka-dev
    libopenblas-dev libopenmpi-dev openmpi-bin libhdf5-dev)
test_packages=(clang clang-format clang-tidy python3-h5py hdf5-tools)
fresh_packages=(debootstrap)

# missing_packages PACKAGE...: those that are not installed, one a line.
missing_packages() {
    local package
    for package; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s\n' "$package"
    done
}

# as_root COMMAND...: run it as root, or fail at once when that would need a password.
as_root() {
    if [[ $EUID == 0 ]]; then
        env "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n env "$@"
    else
        return 1
    fi
}

# install_packages LOG PACKAGE...
install_packages() {
    local log=$1
    shift
    as_root true || return 1
    printf 'installing: %s\n' "$*"
    local apt=(DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
    if as_root "${apt[@]}" update >"$log" 2>&1 </dev/null &&
        as_root "${apt[@]}" install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
        return 0
    fi
    printf 'installing did not work; the end of %s:\n' "$log" >&2
    tail -n 15 "$log" | sed 's/^/    /' >&2
    return 1
}

# provide_packages install|look LOG PACKAGE...: install what is missing, or only look. Status 2,
# after naming what is missing, when something still is.
provide_packages() {
    local mode=$1 log=$2 missing
    shift 2
    if ! command -v dpkg-query >/dev/null; then
        printf 'no dpkg-query here: going on without a look for: %s\n' "$*"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} > 0)) || return 0
    if [[ $mode == install ]] && install_packages "$log" "${missing[@]}"; then return 0; fi
    printf 'missing packages; as root: apt-get install %s\n' "${missing[*]}" >&2
    return 2
}
