package redis

import (
	"context"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/limit"
)

var limitScript = newScript("limit").unacknowledged() // the lost part of a count is granted a second time

// kindLimit is the kind of the keys with a scope's use of its limits: one hash for each scope and limit.
const kindLimit = "c"

// Counters returns counters for package limit, shared by all nodes that use this server and the same prefix. Each call
// is one round trip and one step of the server, by its clock.
func (s *Store) Counters() limit.Counters { return counters{s} }

type counters struct{ store *Store }

// leastPart is the shortest part of time in which active keys are counted.
const leastPart = time.Second

// Take implements [limit.Counters].
func (c counters) Take(ctx context.Context, t limit.Take) (limit.Grant, error) {
	key := c.store.names.bucketOf([]byte(t.Scope)).base + kindLimit + ":" + t.Name + ":" + t.Scope
	part := max(t.Retention/limit.ActiveParts, leastPart)
	message, err := c.store.run(ctx, limitScript, []string{key},
		number(t.Rate.Limit), number(t.Rate.Window.Microseconds()), number(t.Active), number(t.Retention.Microseconds()),
		number(part.Microseconds()), number(t.Need), number(t.Want), number(limit.PortionShare), number(t.Unused),
		number(t.UnusedEnd), number(t.Undone), t.Taker, number(t.Number), number((2 * limit.RepeatWithin).Microseconds()))
	if err != nil {
		return limit.Grant{}, err
	}
	reply, err := message.AsIntSlice()
	if err != nil || len(reply) != 4 {
		return limit.Grant{}, unexpected(err)
	}
	grant := limit.Grant{
		Granted: int(reply[0]), End: reply[1], Limit: t.Name, After: time.Duration(reply[3]) * time.Microsecond,
	}
	if reply[2] == 1 {
		grant.Limit = onceward.LimitActiveKeys
	}
	return grant, nil
}
