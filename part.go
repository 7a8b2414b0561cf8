package onceward

import (
	"context"
	"strconv"
	"sync"
)

type partsKey struct{}

// parts tells the parts of an operation apart that have the same name.
type parts struct {
	step string

	mu     sync.Mutex
	counts map[string]int  // by the name that is asked for
	given  map[string]bool // the names that were given, because one with a number may be asked for too
}

// Part names a part of what the operation of the context does, for [Operation.DownstreamKey], such as one of several messages
// that it sends. The name has the step of a phased operation in front of it and, from the second time on that it is asked
// for, a number behind it: so it is the same in every attempt, if the handler does the same each time.
func Part(ctx context.Context, name string) string {
	counted, ok := ctx.Value(partsKey{}).(*parts)
	if !ok {
		op := FromContext(ctx)
		if op == nil {
			return name
		}
		counted = &op.parts
	}
	return counted.name(name)
}

// ContextWithStep is for those who run an operation in steps: it returns a context in which [Part] counts anew.
func ContextWithStep(ctx context.Context, step string) context.Context {
	return context.WithValue(ctx, partsKey{}, &parts{step: step})
}

func (p *parts) name(asked string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts, p.given = make(map[string]int), make(map[string]bool)
	}
	name := asked
	for given := true; given; given = p.given[name] {
		p.counts[asked]++
		if n := p.counts[asked]; n > 1 {
			name = asked + " #" + strconv.Itoa(n)
		}
	}
	p.given[name] = true
	if p.step != "" {
		name = strconv.Quote(p.step) + " " + name
	}
	return name
}

// reset begins to count anew, because what an earlier run did was undone.
func (p *parts) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.counts)
	clear(p.given)
}
