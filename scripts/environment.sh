# Functions for the scripts of this folder: make a virtual environment with pinned packages, and find Multi30k's files.

unset PYTHONHOME PYTHONPATH
export PYTHONUTF8=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# Prints the first Python from 3.10 to 3.13 that can make virtual environments; $PYTHON, when set, is the only one tried.
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
    echo "error: no Python from 3.10 to 3.13 that has its venv module, tried: ${candidates[*]};" \
        "install one (on Debian and Ubuntu python3-venv, too) or set PYTHON to the path of one" >&2
    return 1
}

# make_environment FOLDER PACKAGE: install PACKAGE in FOLDER with the versions of constraints.txt. An existing environment
# is kept while pyproject.toml and constraints.txt are unchanged, and is replaced otherwise. Run it in the repository.
make_environment() {
    local folder=$1 package=$2 stamp=$1/mtformer-environment wanted python
    wanted="$package $PWD $(cat pyproject.toml constraints.txt | cksum)"
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$folder/bin/python" -c '' 2>/dev/null; then
        return
    fi
    if [[ -e $folder && ! -f $stamp ]]; then
        echo "error: $folder exists and was not made by this script; move it away and run this again" >&2
        return 1
    fi
    python=$(find_python) || return
    echo "installing into $folder; this takes some minutes the first time" >&2
    # An empty stamp marks an unfinished environment; it is kept while the rest is removed, in case that is interrupted.
    mkdir -p "$folder" && : >"$stamp" || return
    find "$folder" -mindepth 1 -maxdepth 1 ! -path "$stamp" -exec rm -rf {} + || return
    "$python" -m venv "$folder" || return
    "$folder/bin/python" -m pip install --quiet -c constraints.txt -e "$package" || return
    printf '%s\n' "$wanted" >"$stamp"
}

# sources_of FOLDER: set the array `sources` to overrides for Multi30k's train, val and test files, plain or .gz.
sources_of() {
    local folder=$1
    file() { [[ -e $folder/$1 ]] && printf '%s' "$folder/$1" || printf '%s' "$folder/$1.gz"; }
    source_of() { printf "{src: '%s', tgt: '%s'}" "$(file "$1.en")" "$(file "$1.de")"; }
    sources=("data.train=[$(source_of train)]" "data.dev=[$(source_of val)]"
        "data.test={test_2016_flickr: $(source_of test_2016_flickr)}")
}
