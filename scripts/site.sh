#!/usr/bin/env bash
# Build the site of the documentation from the plain Markdown files: bash scripts/site.sh [OUTPUT]
# OUTPUT (default: site) is the folder with the pages. Installs Zensical into .venv-site.
set -euo pipefail
output=$(mkdir -p -- "${1:-site}" && CDPATH='' cd -- "${1:-site}" && pwd)
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

python=$(find_python)
if [[ ! -x .venv-site/bin/zensical ]]; then
    "$python" -m venv .venv-site
    .venv-site/bin/python -m pip install --quiet 'zensical==0.0.73'
fi

# The pages link to files in the folder of the repository, so the source of the site has the same folders.
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir "$work/pages"
cp -r README.md CHANGELOG.md CITATION.cff LICENSE configs docs "$work/pages"
find "$work/pages" -name '*.md' -exec sed -i 's#\(](\([^()]*/\)\?\)README\.md#\1index.md#g' {} +
find "$work/pages" -name README.md -execdir mv {} index.md \;
cp docs/zensical.toml "$work/zensical.toml"
rm "$work/pages/docs/zensical.toml"
.venv-site/bin/zensical build --strict --config-file "$work/zensical.toml"
cp -r "$work/site/." "$output"
