package onceward

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// operationName returns the name of an operation by method and route pattern.
func operationName(method, pattern string) string {
	if strings.HasPrefix(pattern, method+" ") {
		return pattern
	}
	return method + " " + pattern
}

// operationNames holds a guard's names of operations, from its configuration and its routes.
type operationNames struct {
	mu      sync.Mutex
	known   map[string]bool
	full    bool // some names were not kept
	routes  int  // the number of routes
	unnamed int  // the number of routes whose place the guard does not know
}

// maxNames bounds the memory of names: a wrapper may make a new protected handler for each request. Beyond it no check
// is certain.
const maxNames = 4096

func (n *operationNames) add(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addLocked(names...)
}

func (n *operationNames) addLocked(names ...string) {
	if n.known == nil {
		n.known = make(map[string]bool)
	}
	for _, name := range names {
		if len(n.known) >= maxNames && !n.known[name] {
			n.full = true
			return
		}
		n.known[name] = true
	}
}

// addRoute records a route. Its name is its [OperationName], or becomes known when a [Mux] or an [Audit] receives it.
func (n *operationNames) addRoute(p *protected) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, p.placed = p.next.(probe); p.placed {
		return
	}
	n.routes++
	if p.settings.operation == "" {
		n.unnamed++
		return
	}
	n.addLocked(p.settings.operation)
}

// addProcedure records a procedure. A procedure without a name takes the names of its calls, which are not known.
func (n *operationNames) addProcedure(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.routes++
	if name == "" {
		n.unnamed++
		return
	}
	n.addLocked(name)
}

// dropRoute removes a route that was built only for an inspection. It may have been built around something other than
// the probe itself.
func (n *operationNames) dropRoute(p *protected) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.placed {
		return
	}
	p.placed = true
	n.routes--
	if p.settings.operation == "" {
		n.unnamed--
	}
}

// placeRoute records the method and pattern of a route; an empty method stands for all.
func (n *operationNames) placeRoute(p *protected, method, pattern string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.settings.operation != "" {
		return
	}
	for _, protected := range p.settings.methods {
		answers := method == "" || method == protected || method == http.MethodGet && protected == http.MethodHead
		if answers {
			n.addLocked(operationName(protected, pattern))
		}
	}
	if !p.placed {
		p.placed = true
		n.unnamed--
	}
}

// CheckOperations checks names by which records are selected, such as the names in a poller's rules, against the
// existing operations: the guard's routes and procedures that have an [OperationName], are on a [Mux] or were passed to
// [Audit], and [Config].Operations. There are never records under any other name.
//
// If the names of all routes are known, an unknown name is an error that wraps [ErrMisconfigured]. If there are no
// routes, as in a process of workers alone, or some are on another router, or there are more names than the 4096 that
// are kept, the name may still be right, and a warning is logged. Call it when all routes are built.
func (g *Guard) CheckOperations(names ...string) error {
	missing, certain := g.names.missing(names)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, ", ")
	if !certain {
		g.config.Logger.Warn("onceward: these names could not be checked, because not all operations are known here: "+
			"register routes on an onceward.Mux, name them with OperationName, or declare them in Config.Operations",
			"operations", list)
		return nil
	}
	return fmt.Errorf("%w: there is no operation %s: correct the name, or declare it in Config.Operations, "+
		"if Guard.Do or another process uses it or a route had it before", ErrMisconfigured, list)
}

// missing returns the names that are not known, each with a suggestion. It is certain if all routes are known.
func (n *operationNames) missing(names []string) (missing []string, certain bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !n.known[name] {
			missing = append(missing, fmt.Sprintf("%q", name)+n.nearestTo(name))
		}
	}
	return missing, n.routes > 0 && n.unnamed == 0 && !n.full
}

// nearestTo suggests the known name with the fewest edits, unless the edits would change more than half of the name.
func (n *operationNames) nearestTo(name string) string {
	nearest, fewest := "", len(name)/2+1
	for _, known := range slices.Sorted(maps.Keys(n.known)) {
		if d := edits(name, known); d < fewest {
			nearest, fewest = known, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf(" (the nearest is %q)", nearest)
}

// edits returns the number of bytes to insert, delete or replace to turn a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
