// Package load is the clients of a chaos run. They lose their connections, leave before the answer, send the same
// request several times at once and another one under the same key, and go on until they have an answer. All that
// they ask and are told is recorded.
package load

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Config says how much there is to do.
type Config struct {
	// Seed begins what the clients draw.
	Seed uint64
	// Window is what all keys and references begin with.
	Window string
	// Clients is how many there are.
	Clients int
	// Fronts are the URLs of the servers.
	Fronts []string
	// Plain leaves out what only nodes on a store with tables serve, but for entries if Entries is set.
	Plain, Entries bool
	// Recorder keeps what is asked and answered.
	Recorder *history.Recorder
}

// Load is the clients.
type Load struct {
	Config
	http *http.Client

	// Started, Done and Abandoned count operations, Left the attempts whose client left before the answer, and Foreign
	// the webhooks about operations of others that were kept.
	Started, Done, Abandoned, Left, Foreign atomic.Int64
	// acts are those of operators.
	acts atomic.Int64

	mu sync.Mutex
	// paid are the payments of each token, which may be refunded once they are charged.
	paid     map[string][]string
	open     []*operation
	late     []*operation
	recorded error
}

// New returns clients that have nothing to do yet.
func New(config Config) *Load {
	// A connection that is used again hides attempts: net/http sends a request with a key again by itself when it
	// breaks.
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: answerLimit}
	return &Load{Config: config, http: client, paid: make(map[string][]string)}
}

const (
	// answerLimit is how long a client waits for an answer.
	answerLimit = 4 * time.Second
	// patience is how many rounds a client spends on one operation before it leaves it to those who finish what is
	// open.
	patience = 4
	// finishers is how many of these there are.
	finishers = 8
	// busts is the part of the answers to sparks that an operator removes when they are seen again.
	busts = 0.6
)

// Run lets the clients work until the context ends. What they have not finished then is open.
func (l *Load) Run(ctx context.Context) {
	var all sync.WaitGroup
	for client := range l.Clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(l.Seed, uint64(client)+100))
			for n := 0; ctx.Err() == nil; n++ {
				l.one(ctx, random, client, n)
			}
		})
	}
	for finisher := range finishers {
		all.Go(func() { l.finishSome(ctx, rand.New(rand.NewPCG(l.Seed, uint64(finisher)+10))) })
	}
	all.Wait()
}

// one is one operation of a client, from its first attempt to its answer.
func (l *Load) one(ctx context.Context, random *rand.Rand, client, n int) {
	op := l.draw(ctx, random, client, n)
	if op == nil {
		return
	}
	l.Started.Add(1)
	for range patience {
		if l.round(ctx, random, op); op.answered() {
			l.finished(random, op)
			return
		}
		if op.abandoned {
			l.Abandoned.Add(1)
			return
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(20*time.Millisecond + time.Duration(random.Int64N(int64(150*time.Millisecond))))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, op)
}

// finished counts an operation, and now and then keeps it to be sent again much later.
func (l *Load) finished(random *rand.Rand, op *operation) {
	l.Done.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.payment != "" {
		l.paid[op.token] = append(l.paid[op.token], op.payment)
	}
	if random.Float64() < 0.25 || op.expires() {
		l.late = append(l.late, op)
	}
}

// round sends an operation once, or several times at once, to servers that are drawn. A lapse is sent again as soon
// as the lease of its first owner is over: that one waits for it.
func (l *Load) round(ctx context.Context, random *rand.Rand, op *operation) {
	copies := 1
	if op.kind == "lapse" && op.asked == 0 {
		copies = 4
	} else if random.Float64() < 0.3 {
		copies = 2 + random.IntN(2)
	}
	var all sync.WaitGroup
	for i := range copies {
		request := op.requests[random.IntN(len(op.requests))]
		delay := time.Duration(random.Int64N(int64(15 * time.Millisecond)))
		if op.kind == "lapse" && op.asked == 0 {
			request = op.requests[0]
			delay += time.Duration(i) * node.LapseLease * 5 / 4
		}
		leave := time.Duration(0)
		if random.Float64() < 0.08 {
			leave = time.Duration(1 + random.Int64N(int64(50*time.Millisecond)))
		}
		front := l.Fronts[random.IntN(len(l.Fronts))]
		all.Go(func() {
			time.Sleep(delay)
			l.attempt(ctx, op, request, front, leave)
		})
	}
	op.asked++
	all.Wait()
	l.forge(ctx, random, op)
}

// finishSome goes on with what clients have given up, and sends again what was answered long ago.
func (l *Load) finishSome(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		if op := l.take(&l.late, random, 0.3); op != nil {
			l.round(ctx, random, op)
			if op.kind == "spark" && random.Float64() < busts {
				l.bust(ctx, random, op)
			}
			l.again(random, op)
		}
		if op := l.take(&l.open, random, 1); op != nil {
			l.finish(ctx, random, op)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// again keeps an operation whose answer expires to be sent still later.
func (l *Load) again(random *rand.Rand, op *operation) {
	if !op.expires() || random.Float64() < 0.1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = append(l.late, op)
}

// finish sends an open operation again, and puts it back if it is still open.
func (l *Load) finish(ctx context.Context, random *rand.Rand, op *operation) {
	l.round(ctx, random, op)
	if op.answered() {
		l.finished(random, op)
		return
	}
	time.Sleep(50 * time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, op)
}

// take takes the oldest of a list, by chance.
func (l *Load) take(list *[]*operation, random *rand.Rand, rate float64) *operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(*list) == 0 || random.Float64() > rate {
		return nil
	}
	op := (*list)[0]
	*list = (*list)[1:]
	return op
}

// Insist is an operation that is sent again and again until a fast store in front of the durable one should know its
// answer, and removed. N tells it from others.
func (l *Load) Insist(ctx context.Context, n int) {
	random := rand.New(rand.NewPCG(l.Seed, uint64(n)+1000))
	op, name := l.begin(l.Clients, n) // no other client has this number
	op.drawSpark(random, name)
	l.Started.Add(1)
	for n := 0; n < patience && ctx.Err() == nil; n++ {
		l.round(ctx, random, op) // the first is executed, the second read from the durable store
	}
	if !op.answered() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = append(l.open, op)
		return
	}
	l.Done.Add(1)
	l.bust(ctx, random, op)
}

// Finish goes on with what is open until there is nothing left or the context ends, and returns how many were left.
func (l *Load) Finish(ctx context.Context) (left int) {
	var randoms [finishers]*rand.Rand
	for i := range randoms {
		randoms[i] = rand.New(rand.NewPCG(l.Seed, uint64(i)+50))
	}
	for ctx.Err() == nil && l.Open() > 0 {
		var all sync.WaitGroup
		for _, random := range randoms {
			all.Go(func() {
				if op := l.take(&l.open, random, 1); op != nil {
					l.finish(ctx, random, op)
				}
			})
		}
		all.Wait()
	}
	return l.Open()
}

// Open is how many operations have no answer yet and no client at them.
func (l *Load) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Err is the first failure to record an attempt: what is not recorded cannot be checked.
func (l *Load) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recorded
}

// tokens are those that clients use, in an order that is always the same.
var tokens = slices.Sorted(maps.Keys(node.Tokens))
