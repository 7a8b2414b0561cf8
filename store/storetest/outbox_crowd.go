package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/onceward/onceward/outbox"
)

// These constants are the size of the crowd of workers.
const (
	claimers     = 8
	crowdedLanes = 40
	crowdedTotal = 500
)

// testOutboxCrowd makes many workers claim and finish at once: each message is claimed once, and order holds (O2).
func testOutboxCrowd(t *testing.T, h Harness) {
	h.test(t, "many claimers", func(e *env) {
		c := newDeliveries(e)
		errs := make([]error, claimers)
		together(claimers, func(i int) { errs[i] = c.work() })
		for _, err := range errs {
			if err != nil {
				e.Error(err)
			}
		}
		stats, err := e.box().MessageStats(e.ctx)
		e.must(err)
		if stats.Waiting != 0 || len(c.claimed) != crowdedTotal {
			e.Errorf("O2: %d of %d messages were delivered, and %d wait", len(c.claimed), crowdedTotal, stats.Waiting)
		}
	})
}

// deliveries records what a crowd of workers has delivered.
type deliveries struct {
	*env
	// place is the position of each message within its aggregate.
	place map[string]int

	mu   sync.Mutex
	wake *sync.Cond
	// claimed contains the messages that were claimed, and next the position that each aggregate has reached.
	claimed map[string]bool
	next    map[string]int
	// rounds counts finished deliveries, idle the workers that found nothing, and stuck how often all workers were idle
	// in succession. over means that all is delivered, or that a worker has failed.
	rounds, idle, stuck int
	over                bool
}

// newDeliveries adds the messages; some of them have no aggregate.
func newDeliveries(e *env) *deliveries {
	d := &deliveries{env: e, place: make(map[string]int), claimed: make(map[string]bool), next: make(map[string]int)}
	d.wake = sync.NewCond(&d.mu)
	for from := 0; from < crowdedTotal; from += 50 {
		var batch []outbox.Message
		for i := from; i < from+50; i++ {
			aggregate := ""
			if lane := i % (crowdedLanes + 1); lane > 0 {
				aggregate = fmt.Sprint("aggregate ", lane)
			}
			batch = append(batch, about(aggregate, fmt.Sprint("message ", i)))
		}
		for i, id := range e.add(batch...) {
			d.place[id] = (from + i) / (crowdedLanes + 1)
		}
	}
	return d
}

// work claims and finishes messages until all are delivered. It waits for the other workers when there is nothing to
// claim.
func (d *deliveries) work() (err error) {
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	for {
		rounds, over := d.look()
		if over {
			return nil
		}
		claimed, err := d.box().ClaimMessages(d.ctx, []outbox.ClaimRequest{{Topic: topic, Limit: 7}}, calm)
		if err != nil {
			return err
		}
		if len(claimed) == 0 {
			if err := d.wait(rounds); err != nil {
				return err
			}
			continue
		}
		if err := d.deliver(claimed); err != nil {
			return err
		}
	}
}

// deliver takes messages in the order of the claim, and finishes them as done.
func (d *deliveries) deliver(claimed []outbox.Claimed) error {
	outcomes := make([]outbox.Outcome, len(claimed))
	for i, c := range claimed {
		if err := d.note(c); err != nil {
			return err
		}
		outcomes[i] = to(outbox.StateDone, c)
	}
	fenced, err := d.box().FinishMessages(d.ctx, outcomes)
	if err != nil || len(fenced) > 0 {
		return fmt.Errorf("O2: %d leases that are held were said to be lost (%w)", len(fenced), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rounds++
	d.stuck = 0
	d.over = d.over || len(d.claimed) == crowdedTotal
	d.wake.Broadcast()
	return nil
}

// note checks that a message is claimed once and in its order.
func (d *deliveries) note(c outbox.Claimed) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claimed[c.ID] {
		return fmt.Errorf("O2: %q was claimed twice", c.Type)
	}
	d.claimed[c.ID] = true
	if !c.Ordered() {
		return nil
	}
	if d.place[c.ID] != d.next[c.AggregateID] {
		return fmt.Errorf("O2: of %s message %d was delivered when message %d was next", c.AggregateID, d.place[c.ID],
			d.next[c.AggregateID])
	}
	d.next[c.AggregateID]++
	return nil
}

// look returns how many rounds there were, and whether the deliveries are over.
func (d *deliveries) look() (rounds int, over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rounds, d.over
}

func (d *deliveries) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	d.wake.Broadcast()
}

// wait waits for the end of a round after the given one. If all workers wait, no worker holds a lease, and all
// remaining messages are due: then a message was forgotten, unless the workers only blocked each other, which is why
// they look again.
func (d *deliveries) wait(rounds int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle++
	defer func() { d.idle-- }()
	if d.idle == claimers && d.rounds == rounds {
		d.stuck++
		if d.stuck > 3 {
			return fmt.Errorf("O2: %d of %d messages are delivered and no worker died, but none of the others can be claimed: "+
				"are they behind nothing?",
				len(d.claimed), crowdedTotal)
		}
		d.rounds++
		d.wake.Broadcast()
	}
	for d.rounds == rounds && !d.over {
		d.wake.Wait()
	}
	return nil
}
