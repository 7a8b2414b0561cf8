package doctor

import (
	"context"
	"fmt"
	"time"
)

// maxSkew is the largest accepted difference between the clocks of a
// store and a node. First-sent times of clients are off by as much.
const maxSkew = 2 * time.Second

// reading is one reading of a clock: the time shown, and this node's times before and after.
type reading struct {
	before, after time.Time
	shown         time.Time
}

// bounds returns how far the clock is ahead of this node's clock, at least and at most.
func (r reading) bounds() (least, most time.Duration) {
	// Round removes the monotonic readings, which the store's time does not have.
	return r.shown.Sub(r.after.Round(0)), r.shown.Sub(r.before.Round(0))
}

// readClock reads a clock many times, with pauses in which a running clock must advance.
func readClock(ctx context.Context, read func(context.Context) (time.Time, error)) (all []reading, err error) {
	for range readings {
		one := reading{before: time.Now()}
		if one.shown, err = read(ctx); err != nil {
			return nil, err
		}
		one.after = time.Now()
		all = append(all, one)
		time.Sleep(readingPause)
	}
	return all, nil
}

// skew returns how far a clock is ahead of this node's clock, by the readings with the narrowest bounds.
func skew(all []reading) (least, most time.Duration) {
	least, most = all[0].bounds()
	for _, one := range all[1:] {
		l, m := one.bounds()
		if m-l < most-least {
			least, most = l, m
		}
	}
	return least, most
}

// judgeClock adds findings about a clock, from consecutive readings.
func judgeClock(r *Result, name string, all []reading) {
	const (
		sync  = "let NTP or its like set the clocks of the servers and the nodes, and alert on the offset"
		fixed = "use a server whose clock goes: nothing may stand between the store and it"
	)
	for i, one := range all[1:] {
		if one.shown.Before(all[i].shown) {
			r.find(Broken, sync, "%s went back by %s from one reading to the next", name, all[i].shown.Sub(one.shown))
			break
		}
	}
	first, last := all[0], all[len(all)-1]
	passed, counted := last.before.Sub(first.after), last.shown.Sub(first.shown)
	if passed > time.Millisecond && counted == 0 {
		r.find(Broken, fixed, "%s stands still: it showed %s for %s", name, last.shown.UTC().Format(time.RFC3339Nano), passed)
	}
	least, most := skew(all)
	r.saw("%s is ahead by %s to %s", name, round(least), round(most))
	switch {
	case least > maxSkew:
		r.find(Weak, sync, "%s is at least %s ahead of this machine's", name, round(least))
	case most < -maxSkew:
		r.find(Weak, sync, "%s is at least %s behind this machine's", name, round(-most))
	}
}

const (
	// readings is the number of times a clock is read.
	readings     = 15
	readingPause = 2 * time.Millisecond
)

// tryClock reads the clock within one transaction, as the store does: each statement must get the current time.
func tryClock(ctx context.Context, p *postgres, r *Result) error {
	clocks := map[string]string{"the server's clock": `SELECT clock_timestamp()`}
	order := []string{"the server's clock"}
	if p.tables {
		name := fmt.Sprintf("the clock of the tables (%snow)", p.prefix)
		clocks[name] = `SELECT to_timestamp(` + p.table("now") + `() / 1e6)`
		order = append(order, name)
	}
	for _, name := range order {
		conns, done, err := p.dial(ctx, 1)
		if err != nil {
			return err
		}
		if _, err = conns[0].Exec(ctx, `BEGIN`); err == nil {
			var all []reading
			all, err = readClock(ctx, func(ctx context.Context) (shown time.Time, err error) {
				err = conns[0].QueryRow(ctx, clocks[name]).Scan(&shown)
				return shown, err
			})
			if err == nil {
				judgeClock(r, name, all)
			}
		}
		done()
		if err != nil {
			return err
		}
	}
	return nil
}
