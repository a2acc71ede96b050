#!/bin/sh
# Cython 3.3.1, pure-Python mode with types in a .pxd: a comparison of a 64-bit C integer with a literal of 2**31 or more builds Python objects.
#
# Expected: `value < 0x80000000` with `value` declared as Py_ssize_t, 64 bits wide, is one comparison in C, as `value <= 0x7FFFFFFF` is: both sides
# are known and fit.
# Seen: the variable is made a Python int, compared with an object for the literal, and the difference is computed by objects too. Only a literal
# that fits 31 bits stays in C, or one in a module's variable that is declared in the .pxd. Results are equal, no warning is printed, the
# annotated listing alone shows it; a sign of 32 bits, tested for each length of a frame, costs two allocations.
#
# Needs python3 (3.11 or newer). Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "cython==${CYTHON:-3.3.1}" 'setuptools>=77'
cd "$folder"
cat > signs.py <<'PY'
SIGN, RANGE = 0x80000000, 0x100000000


def by_literal(value):
    return value if value < 0x80000000 else value - 0x100000000


def by_smaller_literal(value):
    return value if value <= 0x7FFFFFFF else -1


def by_constant(value):
    return value if value < SIGN else value - RANGE
PY
cat > signs.pxd <<'PXD'
cdef Py_ssize_t SIGN, RANGE

cpdef Py_ssize_t by_literal(Py_ssize_t value) except? -1
cpdef Py_ssize_t by_smaller_literal(Py_ssize_t value) except? -1
cpdef Py_ssize_t by_constant(Py_ssize_t value) except? -1
PXD
venv/bin/cython -3 signs.py -o signs.c
# Objects made of the argument in the C function of each.
objects() {
  awk -v name="__pyx_f_5signs_$1(" 'index($0, "static Py_ssize_t " name) && /{$/ {inside = 1} inside && /PyLong_FromSsize_t\(__pyx_v_value\)/ {count++}
    inside && /^}/ {inside = 0} END {print count + 0}' signs.c
}
echo "objects of the argument: by literal $(objects by_literal), by a literal below 2**31 $(objects by_smaller_literal), by a typed constant $(objects by_constant)"
test "$(objects by_literal)" = 2
test "$(objects by_smaller_literal)" = 0
test "$(objects by_constant)" = 0
