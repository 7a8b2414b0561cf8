package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// turnsARound is how many turns a contender of a contest has for each round of the command line: a turn is short, so
// that what else the machine does meets all of them alike.
const turnsARound = 3

// comparison compares two ways of a contest. Its name may have a goal; without one it is information.
type comparison struct {
	name  string
	way   string
	rival string
	// times says that the figure is how many times the rival's time the way takes, instead of the part of its rate that
	// it reaches.
	times bool
	// half says that the figure is how many times the rival's time the way takes for half of its operations.
	half bool
	// like names the figure whose goal a reader compares this one with: the same on a server with other settings.
	like string
	// fine says that the ways differ by a few percent, as rounds do: there are three times as many.
	fine bool
}

// result is what each way of a contest reached in each turn.
type result struct {
	// rates are operations a second, and halves the milliseconds that half of the operations did not exceed.
	rates, halves series
	// here is the processor time of this process for an operation in microseconds, and server that of the server: on a
	// machine that is busy with other things they say more than rates.
	here, server series
}

func newResult() *result {
	return &result{make(series), make(series), make(series), make(series)}
}

// order is where the order of turns comes from.
func (o *options) order() *rand.Rand { return rand.New(rand.NewPCG(o.seed, 0)) }

// takeTurns lets the contenders of these names repeat their operations in turns, in another order each time: what the
// server does at intervals of its own, such as a checkpoint, would otherwise meet one of them more often. The time that
// the server has taken of the processors may be nil.
func takeTurns(
	ctx context.Context, o *options, callers int, names []string, arenas []*arena,
	serverTime func(context.Context) (time.Duration, error),
) (*result, error) {
	res, order := newResult(), o.order()
	for range o.rounds * turnsARound {
		for _, i := range order.Perm(len(arenas)) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := res.turn(ctx, names[i], callers, o.time, arenas[i], serverTime); err != nil {
				return nil, fmt.Errorf("%s: %w", names[i], err)
			}
		}
	}
	return res, nil
}

// turn lets one contender repeat its operation.
func (res *result) turn(
	ctx context.Context, name string, callers int, length time.Duration, a *arena,
	serverTime func(context.Context) (time.Duration, error),
) error {
	before, err := measureProcessors(ctx, serverTime)
	if err != nil {
		return err
	}
	t, err := repeat(callers, length, a.operate)
	if err != nil {
		return err
	}
	after, err := measureProcessors(ctx, serverTime)
	if err != nil {
		return err
	}
	res.rates.add(name, t.rate)
	res.halves.add(name, t.half.Seconds()*1e3)
	res.here.add(name, float64((after.here-before.here).Microseconds())/float64(t.done))
	res.server.add(name, float64((after.server-before.server).Microseconds())/float64(t.done))
	return nil
}

// ratios are what the comparison comes to, turn by turn.
func (f *comparison) ratios(res *result) []float64 {
	switch {
	case f.half:
		return res.halves.ratios(f.way, f.rival)
	case f.times:
		return res.rates.ratios(f.rival, f.way)
	}
	return res.rates.ratios(f.way, f.rival)
}

// tell prints what the turns of a contest come to, with what lies around it.
func (f *comparison) tell(r *report, res *result) {
	if !r.wants(f.name) {
		return
	}
	ratios := f.ratios(res)
	value := median(ratios)
	if _, promised := goals[f.name]; promised {
		r.judge(f.name, value)
	} else if g, ok := goals[f.like]; ok {
		other := newFigure(g, value)
		verdict := "misses"
		if other.met(other.value) {
			verdict = "meets"
		}
		r.note("%s: %s, which %s the goal of %s, %s", f.name, other.shown(), verdict, f.like, g)
	} else {
		r.inform(f.name, value)
	}
	around := middleHalf(ratios)
	if f.half {
		r.note("  %s; %.2f ms against %.2f", around, res.halves.median(f.way), res.halves.median(f.rival))
		return
	}
	r.note("  %s; µs of processor time here %.0f against %.0f, in the server %.0f against %.0f", around,
		res.here.median(f.way), res.here.median(f.rival), res.server.median(f.way), res.server.median(f.rival))
}

// middleHalf says between which values half of the turns lie.
func middleHalf(ratios []float64) string {
	return fmt.Sprintf("%.2f to %.2f in the middle half of %d turns", quantile(ratios, 0.25), quantile(ratios, 0.75),
		len(ratios))
}

// contestHead is the head of a table of what ways reached, with a row for each by cells.
func contestHead() []string {
	return []string{"way", "callers", "a second", "middle half", "p50 ms", "µs here", "µs in the server"}
}

// cells are what a way reached.
func (res *result) cells(name string, callers int) []string {
	rates := res.rates[name]
	return []string{
		name, fmt.Sprint(callers), grouped(median(rates)),
		grouped(quantile(rates, 0.25)) + " to " + grouped(quantile(rates, 0.75)),
		fmt.Sprintf("%.2f", res.halves.median(name)), fmt.Sprintf("%.0f", res.here.median(name)),
		fmt.Sprintf("%.0f", res.server.median(name)),
	}
}

// namesOf are those of figures.
func namesOf(figures []comparison) (names []string) {
	for _, f := range figures {
		names = append(names, f.name)
	}
	return names
}
