# Functions for the scripts in this folder: create a virtual environment with pinned packages, find Multi30k's files.

unset PYTHONHOME PYTHONPATH
export PYTHONUTF8=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# Print the first Python from 3.10 to 3.13 that can create virtual environments; if $PYTHON is set, only it is tried.
find_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.10 python)
    if [[ -n ${PYTHON-} ]]; then
        candidates=("$PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
            >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    echo "error: no Python from 3.10 to 3.13 with the venv module found (tried: ${candidates[*]});" \
        "install one (on Debian and Ubuntu also python3-venv), or set PYTHON to its path" >&2
    return 1
}

# make_environment FOLDER PACKAGE: install PACKAGE in FOLDER with the versions in constraints.txt. An existing
# environment is kept if pyproject.toml and constraints.txt are unchanged, else replaced. Run it in the repository root.
make_environment() {
    local folder=$1 package=$2 stamp=$1/mtformer-environment wanted python
    wanted="$package $PWD $(cat pyproject.toml constraints.txt | cksum)"
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    if [[ -e $folder && ! -f $stamp ]]; then
        echo "error: $folder exists but was not created by this script; move it away and try again" >&2
        return 1
    fi
    python=$(find_python) || return
    echo "installing into $folder; this takes a few minutes the first time" >&2
    # An empty stamp marks an incomplete environment; it is kept in case the deletion of the other files is interrupted.
    mkdir -p "$folder" && : >"$stamp" || return
    find "$folder" -mindepth 1 -maxdepth 1 ! -path "$stamp" -exec rm -rf {} + || return
    "$python" -m venv "$folder" || return
    "$folder/bin/python" -m pip install --quiet -c constraints.txt -e "$package" || return
    printf '%s\n' "$wanted" >"$stamp"
}

# sources_of FOLDER: set the array `sources` to overrides for the train, val and test files of Multi30k, plain or .gz.
sources_of() {
    local folder=$1
    file() { [[ -e $folder/$1 ]] && printf '%s' "$folder/$1" || printf '%s' "$folder/$1.gz"; }
    source_of() { printf "{src: '%s', tgt: '%s'}" "$(file "$1.en")" "$(file "$1.de")"; }
    sources=("data.train=[$(source_of train)]" "data.dev=[$(source_of val)]"
        "data.test={test_2016_flickr: $(source_of test_2016_flickr)}")
}
