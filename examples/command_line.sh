#!/usr/bin/env bash
# A walk through the command line: from a folder of files to versions, pins, copies and back, with what each command says.
#
#     pip install dload-ml && bash examples/command_line.sh
#
# It works in a temporary folder, on the modules of Python's json package. A line that begins with $ is a command as
# anyone would type it; the text before it here is what its output must have in it, and a number how it must end.
set -euo pipefail

ends() {  # ends CODE TEXT COMMAND...
    local code=$1 text=$2 got=0 output
    shift 2
    printf '$ %s\n' "$*"
    output=$("$@" 2>&1) || got=$?
    sed -n 1,16p <<< "$output"
    echo
    if [[ $got != "$code" ]]; then echo "ended with $got, expected $code"; exit 1; fi
    if [[ $output != *"$text"* ]]; then echo "expected to see: $text"; exit 1; fi
}
shows() { ends 0 "$@"; }  # shows TEXT COMMAND...

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
mkdir files
cp "$(python3 -c 'import json, os; print(os.path.dirname(json.__file__))')"/*.py files
count=$(ls files | wc -l | tr -d ' ')
printf 'cp LIBRARY/json/*.py files\n' > made.sh

# ---- a store: here a folder, elsewhere --bucket my-data --endpoint-url https://...
shows "dload.toml" dload init --project --store store --cache-dir cache --cache-budget 100MB
shows "[cache] budget" dload config show
shows "dload commit NAME --from DIR" dload status
shows "all is well" dload doctor

# ---- a first version: x.py is sample x with the field py
shows "this was a dry run" dload commit json --from files --dry-run
shows "$count samples" dload commit json --from files --recipe made.sh --meta kind=code -m "as installed"
shows "nothing to commit" dload commit json --from files --recipe made.sh --meta kind=code
shows "as installed" dload ls
shows "code" dload info json
shows "scanner" dload head json
shows "make_scanner" dload cat json scanner py
shows "cp LIBRARY" dload recipe json

# ---- a second one: only what changed is sent
first=$(dload log json --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["version"])')
echo '# mended' >> files/decoder.py
rm files/tool.py
echo 'pass' > files/extra.py
shows "1 shard sent" dload commit json --from files --recipe made.sh --meta kind=code -m "mended"
shows "mended" dload log json
ends 4 "~ decoder" dload diff json "$first" latest

# ---- names and pins: this folder's project uses the first version, whatever others commit
shows "paper" dload tag "json@$first" paper
shows "dload.lock" dload pin json paper
shows "${first:0:12}" dload ls
ends 13 "expected" dload commit json --from files --expect "$first"

# ---- the files again, byte for byte
shows "$count files written" dload pull json@latest --to back
shows "" diff -r files back
shows "shards:" dload cache status

# ---- foreign data in, and out
printf 'id,text\na,"one, two"\nb,three\n' > table.csv
shows "2 samples" dload import table.csv rows --key id
shows "2 samples in 1 file" dload export rows --to out --format jsonl
shows "one, two" cat out/rows.jsonl

# ---- a pipeline's output, computed once for everybody
cat > lengths.py <<'PY'
import dload


def length(sample):
    key, fields = sample
    return key, {"json": dload.codecs.json_bytes(len(fields["py"]))}


def lengths(repo):
    return repo.dataset("json", "latest").samples().map(length)
PY
shows "the output of lengths:lengths" dload derive lengths:lengths lengths --workers 1
shows "the output of lengths:lengths" dload derive lengths:lengths lengths --workers 1
shows "5" dload cat lengths extra json
shows "derived from" dload info lengths

# ---- a copy in another store, under the same id
shows "copied json@${first:0:12}" dload copy json --to other
shows "${first:0:12}" dload --store other ls

# ---- back, away, and back again
shows "is ${first:0:12} again" dload revert json paper -m "the mend was wrong"
mkdir more
echo 'import json' > more/user.py
shows "$((count + 1)) samples" dload append json --from more
shows "would remove 1 version" dload rm json --keep-last 1 --dry-run
shows "removed 1 version" dload rm json --keep-last 1 --yes
shows "is back" dload undo json
shows "all is well" dload verify json --read-data
shows "would delete 0 shards" dload gc --dry-run

# ---- what goes wrong ends with a number of its own, and says what to do
ends 10 "dload ls" dload info jsn
ends 2 "dload commit --help" dload commit
