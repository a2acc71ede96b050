#!/bin/sh
# Cython 3.3.1 (and 3.1.8), pure-Python mode with types in a .pxd: a big-endian number read from a typed view differs from Python's.
#
# Expected: `number = view[0] << 24 | view[1] << 16 | view[2] << 8 | view[3]` with `number` declared as Py_ssize_t, 64 bits wide, is the same
# compiled and interpreted: the file is plain Python, and the variable holds every value of 32 bits.
# Seen: the elements of `unsigned char[::1]` are promoted to C int, so that the shift by 24 happens in 32 signed bits, and the wide variable gets
# its sign: fe000001 is 4261412865 as Python and -33554431 compiled. No warning, also with -Wall -Wextra; only the directive
# overflowcheck, off by default, computes it right. The four bytes first, each into a declared variable, then the same expression: equal. A number in a file or frame whose first byte
# is below 128, as nearly all lengths and offsets have it, shows nothing.
#
# Needs python3 (3.11 or newer) with its headers and a C compiler. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q "cython==${CYTHON:-3.3.1}" 'setuptools>=77'
cat > "$folder/numbers_of.py" <<'END'
def at_once(view):
    number = view[0] << 24 | view[1] << 16 | view[2] << 8 | view[3]
    return number


def by_variables(view):
    first, second, third, fourth = view[0], view[1], view[2], view[3]
    number = first << 24 | second << 16 | third << 8 | fourth
    return number
END
cat > "$folder/numbers_of.pxd" <<'END'
cimport cython

@cython.locals(number=Py_ssize_t)
cpdef Py_ssize_t at_once(unsigned char[::1] view)

@cython.locals(number=Py_ssize_t, first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t)
cpdef Py_ssize_t by_variables(unsigned char[::1] view)
END
cd "$folder"
interpreted=$(venv/bin/python -c 'from numbers_of import *; v = bytearray.fromhex("fe000001"); print(at_once(v), by_variables(v))')
CFLAGS="-Wall -Wextra -Wno-unused-parameter -Werror" venv/bin/cythonize -i -3 -q numbers_of.py > build.log 2>&1 || { cat build.log; exit 1; }
compiled=$(venv/bin/python -c 'import numbers_of; assert numbers_of.__file__.endswith(".so"); v = bytearray.fromhex("fe000001"); print(numbers_of.at_once(v), numbers_of.by_variables(v))')
echo "interpreted: $interpreted"
echo "compiled:    $compiled"
test "$interpreted" = "4261412865 4261412865"
test "$compiled" = "-33554431 4261412865"
