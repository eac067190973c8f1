#!/usr/bin/env bash
# Kernels under compute-sanitizer: no access out of bounds, no race on shared memory. Takes a minute or two.
#   tests/gpu/sanitize.sh [PYTHON]
# compute-sanitizer comes with the CUDA toolkit, or by: pip install nvidia-cuda-sanitizer-api
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
tool=$(command -v compute-sanitizer || "$python" - <<'PY'
from pathlib import Path
import sys
found = [p for folder in sys.path for p in Path(folder).glob("nvidia/**/compute-sanitizer") if p.is_file()]
print(found[0] if found else "compute-sanitizer")
PY
)
failed=0
for check in memcheck racecheck; do
    start=$SECONDS
    "$tool" --tool "$check" --target-processes application-only --report-api-errors no --error-exitcode 9 \
        "$python" -m pytest -q -x -p no:cacheprovider tests/gpu/test_kernels.py -k test_under_a_sanitizer
    code=$?
    echo "$check: exit code $code, $((SECONDS - start)) s"
    [ "$code" = 0 ] || failed=1
done
exit "$failed"
