#!/bin/sh
# RocketMQ 4.9.7 (rocketmq-common, lz4-java 1.8.0), python-lz4 4.4.4: Java clients read no large LZ4 body that Python writes by default.
#
# Expected: a body that is one standard LZ4 frame, with the flag of LZ4 in its sysFlag, is decompressed by every RocketMQ client; the frame
# format has one flag for blocks that refer to the ones before, and readers know both forms.
# Seen: Lz4Compressor.decompress reads frames of up to 64 KiB of body and fails for longer ones: lz4-java implements independent blocks
# only. lz4.frame.compress of Python links blocks unless block_linked=False is given, and marks a frame as independent when its body fits
# into one block; so tests with small bodies pass, and the first large message fails. zlib and zstd bodies
# have no such pair of forms. Output, for 2,000 and 200,000 bytes:
#
#     short linked: 2000 bytes
#     independent: 200000 bytes
#     linked: java.lang.RuntimeException: Dependent block stream is unsupported (BLOCK_INDEPENDENCE must be set)
#
# Needs python3 (3.11 or newer), a JDK 11 or newer and Maven. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "lz4==${LZ4:-4.4.4}"
cat > "$folder/pom.xml" <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>lz4</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-common</artifactId>
      <version>4.9.7</version>
    </dependency>
  </dependencies>
</project>
END
mvn --quiet --batch-mode -f "$folder/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$folder/jars"
cat > "$folder/write.py" <<'END'
import sys
from pathlib import Path

import lz4.frame

short, body = b"an order of the shop" * 100, b"an order of the shop" * 10_000
for name, body, options in (("short linked", short, {}), ("linked", body, {}), ("independent", body, {"block_linked": False})):
    frame = lz4.frame.compress(body, **options)
    assert lz4.frame.decompress(frame) == body
    Path(sys.argv[1], name).write_bytes(frame)
END
cat > "$folder/Read.java" <<'END'
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.common.compression.Lz4Compressor;

class Read {
    public static void main(String[] arguments) throws Exception {
        for (String name : new String[] {"short linked", "independent", "linked"}) {
            byte[] frame = Files.readAllBytes(Path.of(arguments[0], name));
            try {
                System.out.println(name + ": " + new Lz4Compressor().decompress(frame).length + " bytes");
            } catch (Throwable failure) {
                System.out.println(name + ": " + failure);
            }
        }
    }
}
END
"$folder/venv/bin/python" "$folder/write.py" "$folder"
java -cp "$folder/jars/*" "$folder/Read.java" "$folder" > "$folder/output" 2> "$folder/errors" || cat "$folder/errors"
cat "$folder/output"
if grep -qx "short linked: 2000 bytes" "$folder/output" && grep -qx "independent: 200000 bytes" "$folder/output" &&
    grep -q "^linked: .*Dependent block stream is unsupported" "$folder/output"; then
    echo "behaves as described"
else
    cat "$folder/errors" >&2
    echo "the behaviour has changed" >&2
    exit 1
fi
