package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// pgContender is a way to do something once on PostgreSQL, or to do it without protection.
type pgContender struct {
	name string
	// open makes what the way needs in an empty schema.
	open func(ctx context.Context, s *pgSite) (*arena, error)
}

// assemble opens ways of a contest, each in a schema of its own, and warms them up. All of them are there while any is
// measured, so that they share whatever the machine is busy with.
func (s *pgServer) assemble(
	ctx context.Context, c *pgContest, ways []string, length time.Duration, use func([]*arena) error,
) error {
	if len(ways) == 0 {
		return use(nil)
	}
	return s.visit(ctx, c.callers, c.terms, func(site *pgSite) error {
		return s.run(ctx, contenderOf(ways[0]), site, func(first *arena) error {
			if err := warmUp(first, c.callers, length); err != nil {
				return err
			}
			return s.assemble(ctx, c, ways[1:], length, func(others []*arena) error {
				return use(append([]*arena{first}, others...))
			})
		})
	})
}

// run opens a contender, has its operation repeated, and checks what it left behind.
func (s *pgServer) run(ctx context.Context, c *pgContender, site *pgSite, use func(a *arena) error) error {
	a, err := c.open(ctx, site)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	done, err := a.use(ctx, use)
	if a.remark != nil {
		s.remarks[c.name] = a.remark(done)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// pgContest is a number of ways that take turns, and what is read from them. They are few: the more contenders there
// are, the less each of them finds in the caches of the processors.
type pgContest struct {
	callers int
	terms   terms
	ways    []string
	figures []comparison
}

// hold opens the ways of a contest, and lets them take turns.
func (s *pgServer) hold(ctx context.Context, o *options, c *pgContest) (res *result, err error) {
	err = s.assemble(ctx, c, c.ways, o.time, func(arenas []*arena) (err error) {
		res, err = takeTurns(ctx, o, c.callers, c.ways, arenas, s.processorTime)
		return err
	})
	return res, err
}

// contenderOf is the way of that name.
func contenderOf(name string) *pgContender {
	i := slices.IndexFunc(pgContenders, func(c pgContender) bool { return c.name == name })
	return &pgContenders[i]
}

// compete holds the contests that are wanted, prints what they come to, and puts what the ways reached into a table.
func (s *pgServer) compete(ctx context.Context, o *options, r *report, title string, contests []pgContest) error {
	t := &table{title: title, head: contestHead()}
	for i := range contests {
		c := &contests[i]
		if !o.wants(namesOf(c.figures)...) {
			continue
		}
		res, err := s.hold(ctx, o, c)
		if err != nil {
			return err
		}
		for _, name := range c.ways {
			t.add(res.cells(name, c.callers)...)
		}
		for _, f := range c.figures {
			f.tell(r, res)
		}
	}
	if len(t.rows) > 0 {
		r.keep(t)
		r.note("µs are of processor time for an operation: here that of this process, which is the client")
	}
	return nil
}
