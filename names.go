package onceward

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// operationName is the name of an operation by method and route pattern.
func operationName(method, pattern string) string {
	if strings.HasPrefix(pattern, method+" ") {
		return pattern
	}
	return method + " " + pattern
}

// operationNames is what a guard knows of the names of operations,
// from how it was configured and its routes were built.
type operationNames struct {
	mu      sync.Mutex
	known   map[string]bool
	full    bool // there are names that were not kept
	routes  int  // that were built
	unnamed int  // of them those that are at a place which the guard has not seen
}

// maxNames bounds the memory of names: a wrapper may protect its handler again for each request. Past it nothing is
// certain.
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

// addRoute notes a route that was built. Its name is that of [OperationName], or will be known when a [Mux] or an
// [Audit] is given it.
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

// addProcedure notes a procedure that was built. One without a name has those of its calls, which are not known.
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

// dropRoute takes back a route that was built only to look at it. It may have been built around what is not the probe
// itself.
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

// placeRoute notes where a route is: the method is empty for all.
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

// CheckOperations checks names under which records are looked for, such as those of a poller's rules, against the
// operations that exist: those of the guard's routes and procedures, which are known where they have an
// [OperationName], are on a [Mux] or were given to [Audit], and those of [Config].Operations. A name that is none of
// them would wait for records that never come.
//
// If the names of all routes are known, such a name is an error that wraps [ErrMisconfigured]. If there are no routes,
// as in a process of workers alone, or some are on another router, or there are more names than the 4096 that are kept,
// it may be right all the same, and is logged as a warning. Call it when all routes are built.
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

// missing returns the names that are not known, each with a suggestion, and whether that is certain: all of the routes
// are known.
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

// nearestTo suggests the known name that is the fewest edits away, unless that is most of it.
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

// edits counts the bytes to insert, delete or replace to make b of a.
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
