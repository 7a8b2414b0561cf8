package main

import (
	"context"
	"fmt"
	"time"
)

// pgContender is a way to do something once on PostgreSQL, or to do it without protection.
type pgContender struct {
	name string
	// open makes what the way needs in an empty schema.
	open func(ctx context.Context, s *pgSite) (*arena, error)
}

// assemble opens contenders, each in a schema of its own, and warms them up. All of them are there while any is
// measured, so that they share whatever the machine is busy with.
func (s *pgServer) assemble(
	ctx context.Context, contenders []*pgContender, callers int, length time.Duration, use func([]*arena) error,
) error {
	if len(contenders) == 0 {
		return use(nil)
	}
	return s.visit(ctx, callers, durably, func(site *pgSite) error {
		return s.run(ctx, contenders[0], site, func(first *arena) error {
			if err := warmUp(first, callers, length); err != nil {
				return err
			}
			return s.assemble(ctx, contenders[1:], callers, length, func(others []*arena) error {
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

// pgFigure compares two ways at a number of callers. Its name may have a goal; without one it is information.
type pgFigure struct {
	name    string
	callers int
	way     string
	rival   string
}

// contest lets the two ways that a figure compares take turns. No other contender is there: the more contenders there
// are, the less each of them finds in the caches of the processors.
func (s *pgServer) contest(ctx context.Context, o *options, f pgFigure) (series, error) {
	contenders := contendersOf(f)
	names := make([]string, len(contenders))
	for i, c := range contenders {
		names[i] = c.name
	}
	var rates series
	err := s.assemble(ctx, contenders, f.callers, o.time, func(arenas []*arena) (err error) {
		rates, err = takeTurns(ctx, o, f.callers, names, arenas, func(string, float64) error { return nil })
		return err
	})
	return rates, err
}

// contendersOf are the ways that a figure compares.
func contendersOf(f pgFigure) (contenders []*pgContender) {
	for i := range pgContenders {
		if c := &pgContenders[i]; f.way == c.name || f.rival == c.name {
			contenders = append(contenders, c)
		}
	}
	return contenders
}

// compare holds the contests of the figures that are wanted, prints what they come to, and returns all rates.
func (s *pgServer) compare(ctx context.Context, o *options, r *report, figures []pgFigure) (series, error) {
	all := make(series)
	for _, f := range figures {
		if !o.wants(f.name) {
			continue
		}
		rates, err := s.contest(ctx, o, f)
		if err != nil {
			return nil, err
		}
		compareRates(r, f, rates)
		for name, values := range rates {
			all[name] = append(all[name], values...)
		}
	}
	return all, nil
}
