package importrules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rule is one kind of arrow that must not be. It looks at each package of this module and at all that the package
// depends on, directly or not, in code that is not a test.
type rule struct {
	name string
	// from chooses the packages that the rule is about.
	from func(pkg string) bool
	// forbidden says whether such a package may not depend on dep.
	forbidden func(pkg, dep string) bool
	// oursOnly ends each chain of imports at the first package that is not ours: what it imports is not our doing.
	oursOnly bool
	// most is how many different stores a package may depend on; zero if the rule does not count.
	most int

	// good and bad are made-up imports that the rule must accept and must refuse.
	good, bad []graph
}

// A package that comes later is covered by its place in the tree.
var (
	features = []string{
		"./phase", "./outbox", "./inbox", "./natural", "./reconcile", "./janitor", "./limit", "./proxy", "./console", "./client", "./check",
		"./broker", "./adapter",
	}
	wiring = []string{"./storeurl", "./cmd", "./examples", "./oncewardtest", "./lab"}
	// testParts are packages that tests import, and so may import testing: suites, servers that are closed at the end of a
	// test, processes that are killed then, and a guard against tests that hang. The last three are in internal/ and not
	// in lab because tests of all modules use them; internal/proc itself has no testing in it, because the demo uses it
	// too.
	testParts = []string{
		"./store/storetest", "./oncewardtest", "./internal/servers", "./internal/proc/proctest", "./internal/watchdog",
		"./internal/await", "./internal/nightly",
	}
)

// storeOf names the store that a package belongs to, or nothing.
func storeOf(pkg string) string {
	name, ok := strings.CutPrefix(pkg, "./store/")
	if !ok || under(pkg, "./store/storetest") {
		return ""
	}
	name, _, _ = strings.Cut(name, "/")
	return name
}

// brokerOf names the broker that a package below ./broker belongs to.
func brokerOf(pkg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(pkg, "./broker/"), "/")
	return name
}

// adapterOf is the directory of the adapter that a package below ./adapter belongs to.
func adapterOf(pkg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(pkg, "./adapter/"), "/")
	return "./adapter/" + name
}

func isStore(pkg string) bool { return storeOf(pkg) != "" }

func openTelemetry(pkg string) bool { return under(pkg, "go.opentelemetry.io") }

var rules = []rule{
	{
		name:      "the contract of stores depends on nothing but the standard library",
		from:      func(pkg string) bool { return pkg == "./store" },
		forbidden: func(_, dep string) bool { return !standard(dep) },
		good:      []graph{{"./store": {"time", "database/sql"}}},
		bad: []graph{
			{"./store": {"."}},
			{"./store": {"./internal/canon"}},
			{"./store": {"github.com/dunglas/httpsfv"}},
		},
	},
	{
		name: "the root package depends on nothing but the standard library, httpsfv, the contract of stores and internal packages",
		from: func(pkg string) bool { return pkg == "." },
		forbidden: func(_, dep string) bool {
			return !standard(dep) && dep != "github.com/dunglas/httpsfv" && dep != "./store" && !under(dep, "./internal")
		},
		good: []graph{
			{".": {"net/http", "github.com/dunglas/httpsfv", "./store", "./internal/canon"}, "./internal/canon": {"unicode/utf8"}},
			{"./store/sqlite": {".", "github.com/ncruces/go-sqlite3"}, ".": {"time"}},
		},
		bad: []graph{
			{".": {"./store/memory"}},
			{".": {"./storeurl"}},
			{".": {"./internal/canon"}, "./internal/canon": {"github.com/gowebpki/jcs"}},
			{".": {"github.com/dunglas/httpsfv"}, "github.com/dunglas/httpsfv": {"example.com/surprise"}},
		},
	},
	{
		name: "internal/servers and internal/proc depend on the standard library, each other, internal/nightly and internal/await",
		from: func(pkg string) bool { return under(pkg, "./internal/servers", "./internal/proc") },
		forbidden: func(_, dep string) bool {
			return !standard(dep) && !under(dep, "./internal/proc", "./internal/nightly", "./internal/await")
		},
		good: []graph{{
			"./internal/servers": {"testing", "./internal/proc", "./internal/nightly"}, "./internal/proc": {"os/exec"},
			"./internal/proc/proctest": {"./internal/await"},
		}},
		bad: []graph{
			{"./internal/servers": {"github.com/jackc/pgx/v5"}},
			{"./internal/proc": {"./internal/servers"}},
		},
	},
	{
		name: "the client depends on nothing but the standard library and internal packages",
		from: func(pkg string) bool { return under(pkg, "./client") },
		forbidden: func(_, dep string) bool {
			return !standard(dep) && !under(dep, "./client") && !under(dep, "./internal")
		},
		good: []graph{{"./client": {"net/http", "database/sql", "./internal/backoff"}}},
		bad:  []graph{{"./client": {"."}}, {"./client": {"github.com/dunglas/httpsfv"}}},
	},
	{
		name:      "a feature depends on no store",
		from:      func(pkg string) bool { return under(pkg, features...) },
		forbidden: func(_, dep string) bool { return isStore(dep) },
		good: []graph{
			{"./janitor": {".", "time"}},
			{"./broker/kafka": {"./outbox", "github.com/twmb/franz-go/pkg/kgo"}},
			{"./checkout": {"./store/memory"}},
		},
		bad: []graph{
			{"./janitor": {"./store/memory"}},
			{"./broker/kafka": {"./store/postgres"}},
			{"./proxy": {"./storeurl"}, "./storeurl": {"./store/redis"}},
			{"./adapter/gin": {"./store/memory"}},
		},
	},
	{
		name: "an adapter depends on no other adapter",
		from: func(pkg string) bool { return under(pkg, "./adapter") },
		forbidden: func(pkg, dep string) bool {
			return under(dep, "./adapter") && !under(dep, adapterOf(pkg))
		},
		good: []graph{{"./adapter/mcp": {".", "./adapter/mcp/internal/wire"}}},
		bad:  []graph{{"./adapter/echo5": {"./adapter/echo4"}}},
	},
	{
		name:      "a store depends on no other store",
		from:      isStore,
		forbidden: func(pkg, dep string) bool { return isStore(dep) && storeOf(dep) != storeOf(pkg) },
		good: []graph{
			{"./store/sqlite": {".", "./store/sqlite/internal/batch"}, "./store/sqlite/internal/batch": {"sync"}},
			{"./store/storetest": {"./store/memory"}},
		},
		bad: []graph{
			{"./store/tiered": {"./store/redis"}},
			{"./store/sqlite/internal/batch": {"./store/memory"}},
			{"./store/sealed": {"./limit"}, "./limit": {"./store/memory"}},
		},
	},
	{
		name: "what the adapters for RPC share knows neither framework, and neither knows the other's",
		from: func(pkg string) bool { return under(pkg, "./internal/rpc", "./adapter/grpc", "./adapter/connect") },
		forbidden: func(pkg, dep string) bool {
			return under(dep, "google.golang.org/grpc", "./adapter/grpc") && !under(pkg, "./adapter/grpc") ||
				under(dep, "connectrpc.com/connect", "./adapter/connect") && !under(pkg, "./adapter/connect")
		},
		good: []graph{
			{"./adapter/grpc": {"./internal/rpc", "google.golang.org/grpc/status"}},
			{"./adapter/connect": {"./internal/rpc", "connectrpc.com/connect"}},
		},
		bad: []graph{
			{"./adapter/connect": {"./internal/rpc"}, "./internal/rpc": {"google.golang.org/grpc/codes"}},
			{"./adapter/grpc": {"connectrpc.com/connect"}},
			{"./internal/rpc": {"./adapter/connect"}},
		},
	},
	{
		name:      "a broker depends on no other broker",
		from:      func(pkg string) bool { return under(pkg, "./broker") },
		forbidden: func(pkg, dep string) bool { return under(dep, "./broker") && brokerOf(dep) != brokerOf(pkg) },
		good:      []graph{{"./broker/amqp": {"./broker/amqp/internal/frame", "./internal/consuming"}}},
		bad:       []graph{{"./broker/amqp": {"./internal/events"}, "./internal/events": {"./broker/kafka"}}},
	},
	{
		name: "only a broker, cmd, examples, lab and servers depend on the client of a broker",
		from: func(pkg string) bool {
			return ours(pkg) && !under(pkg, "./broker", "./cmd", "./examples", "./lab", "./internal/servers")
		},
		forbidden: func(_, dep string) bool {
			return under(dep, "github.com/twmb/franz-go", "github.com/nats-io/nats.go", "github.com/rabbitmq/amqp091-go", "./broker")
		},
		good: []graph{
			{"./broker/nats": {"github.com/nats-io/nats.go/jetstream"}},
			{"./lab/outboxcrash": {"./broker/kafka"}, "./broker/kafka": {"github.com/twmb/franz-go/pkg/kgo"}},
		},
		bad: []graph{
			{"./inbox": {"github.com/rabbitmq/amqp091-go"}},
			{"./outbox/httppub": {"./internal/events"}, "./internal/events": {"github.com/twmb/franz-go/pkg/kgo"}},
			{"./outbox": {"./broker/kafka"}},
		},
	},
	{
		name:      "only telemetry, cmd, examples and lab depend on OpenTelemetry",
		from:      func(pkg string) bool { return ours(pkg) && !under(pkg, "./telemetry", "./cmd", "./examples", "./lab") },
		forbidden: func(_, dep string) bool { return openTelemetry(dep) },
		good: []graph{
			{"./telemetry": {"go.opentelemetry.io/otel/metric"}},
			{"./cmd/onceward": {"./telemetry"}, "./telemetry": {"go.opentelemetry.io/otel"}},
		},
		bad: []graph{
			{"./store/redis": {"go.opentelemetry.io/otel"}},
			{"./proxy": {"./telemetry"}, "./telemetry": {"go.opentelemetry.io/otel/trace"}},
			{"./adapter/grpc": {"example.com/instrumented"}, "example.com/instrumented": {"go.opentelemetry.io/otel"}},
		},
	},
	{
		name: "only tests and lab depend on storetest, oncewardtest, servers, proctest, watchdog and testing",
		from: func(pkg string) bool { return ours(pkg) && !under(pkg, testParts...) && !under(pkg, "./lab") },
		forbidden: func(_, dep string) bool {
			return under(dep, testParts...) || under(dep, "testing")
		},
		// A foreign package that imports testing is a reason to look at it, not a mistake of ours.
		oursOnly: true,
		good: []graph{
			{"./store/storetest": {"testing", "pgregory.net/rapid"}},
			{"./lab/bench": {"testing", "./store/storetest"}, "./store/storetest": {"testing"}},
			{"./store/dynamodb": {"example.com/sdk"}, "example.com/sdk": {"testing"}},
			{"./cmd/onceward": {"./internal/proc"}, "./internal/proc": {"os/exec"}},
			{"./internal/servers": {"testing", "./internal/proc"}, "./internal/proc": {"os/exec"}},
			{"./oncewardtest": {"testing", "./store/sqlite"}, "./store/sqlite": {"time"}},
		},
		bad: []graph{
			{"./store/sqlite": {"testing/fstest"}},
			{"./examples/service": {"./oncewardtest"}, "./oncewardtest": {"net/http/httptest"}},
			{"./cmd/onceward": {"./store/storetest"}},
			{"./examples/payments": {"./internal/servers"}},
			{"./cmd/onceward": {"./internal/proc/proctest"}},
			{"./cmd/onceward": {"./internal/proc"}, "./internal/proc": {"testing"}},
			{"./console": {"./internal/page"}, "./internal/page": {"testing"}},
		},
	},
	{
		name: "only storeurl, cmd, examples, oncewardtest, lab and tests depend on several stores",
		from: func(pkg string) bool {
			return ours(pkg) && !under(pkg, wiring...) && !under(pkg, testParts...) && !under(pkg, "./telemetry")
		},
		most: 1,
		good: []graph{
			{"./storeurl": {"./store/memory", "./store/sqlite"}},
			{"./cmd/onceward": {"./storeurl"}, "./storeurl": {"./store/memory", "./store/sqlite"}},
			{"./limit": {"./store/memory"}},
			{"./limit": {"./store/sqlite", "./store/sqlite/internal/batch"}},
			{"./oncewardtest": {"./store/memory", "./store/sqlite"}},
		},
		bad: []graph{
			{"./limit": {"./store/memory", "./store/sqlite"}},
			{"./adapter/gin": {"./storeurl"}, "./storeurl": {"./store/memory", "./store/sqlite"}},
		},
	},
	{
		name: "telemetry depends on no store but those around others, whose events it reads",
		from: func(pkg string) bool { return under(pkg, "./telemetry") },
		forbidden: func(_, dep string) bool {
			return isStore(dep) && !under(dep, "./store/breaker", "./store/tiered") || under(dep, "./storeurl")
		},
		good: []graph{{"./telemetry": {"./store/breaker", "./store/tiered"}}},
		bad:  []graph{{"./telemetry": {"./store/postgres"}}, {"./telemetry": {"./storeurl"}}},
	},
	{
		name:      "oncewardtest depends on no store that needs a server: who tests on SQLite gets no driver of others",
		from:      func(pkg string) bool { return under(pkg, "./oncewardtest") },
		forbidden: func(_, dep string) bool { return isStore(dep) && !under(dep, "./store/sqlite", "./store/memory") },
		good:      []graph{{"./oncewardtest": {"./store/sqlite", "./store/memory"}}},
		bad:       []graph{{"./oncewardtest": {"./store/postgres"}}, {"./oncewardtest": {"./store/redis"}}},
	},
	{
		name:      "nothing but lab depends on lab",
		from:      func(pkg string) bool { return ours(pkg) && !under(pkg, "./lab") },
		forbidden: func(_, dep string) bool { return under(dep, "./lab") },
		good:      []graph{{"./lab/chaos": {"./lab/chaos/internal/world"}}},
		bad: []graph{
			{"./examples/payments": {"./lab/proc"}},
			{"./cmd/onceward": {"./internal/page"}, "./internal/page": {"./lab"}},
		},
	},
}

// violations lists the arrows in g that the rule forbids, each as its chain of imports.
func (r rule) violations(g graph) []string {
	follow := func(pkg string) bool { return !r.oursOnly || ours(pkg) }
	var found []string
	for pkg := range g {
		if !ours(pkg) || !r.from(pkg) {
			continue
		}
		stores := make(map[string]bool)
		for dep, chain := range g.reach(pkg, follow) {
			if r.forbidden != nil && r.forbidden(pkg, dep) {
				found = append(found, strings.Join(chain, " -> "))
			}
			if isStore(dep) {
				stores[storeOf(dep)] = true
			}
		}
		if r.most > 0 && len(stores) > r.most {
			found = append(found, fmt.Sprintf("%s -> %d stores", pkg, len(stores)))
		}
	}
	slices.Sort(found)
	return found
}

func TestImportsFollowTheArrows(t *testing.T) {
	g := loadGraph(t)
	if _, ok := g["."]; !ok {
		t.Fatal("go list did not name the root package: the check would see nothing")
	}
	for _, r := range rules {
		for _, arrow := range r.violations(g) {
			t.Errorf("%s, but: %s", r.name, arrow)
		}
	}
}

func TestRulesHaveTeeth(t *testing.T) {
	for _, r := range rules {
		if len(r.good) == 0 || len(r.bad) == 0 {
			t.Errorf("%s: the rule needs an example of each kind", r.name)
		}
		for _, g := range r.good {
			if found := r.violations(g); len(found) > 0 {
				t.Errorf("%s: refuses %v for %q", r.name, g, found)
			}
		}
		for _, g := range r.bad {
			if len(r.violations(g)) == 0 {
				t.Errorf("%s: accepts %v", r.name, g)
			}
		}
	}
}
