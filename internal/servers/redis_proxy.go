package servers

import (
	"bufio"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// RedisProxy is a proxy between clients and a Redis server. It works like Proxy for PostgreSQL,
// with commands instead of batches: the match functions get a command as its words separated by
// spaces, as in "GET key", and the reply to one command is lost or held. Connections must not
// be encrypted. In addition, it can answer commands itself, and slow connections down.
type RedisProxy struct {
	*Proxy
	commands atomic.Int64
	delay    atomic.Int64
	rate     atomic.Int64
	// answers replace answers of the server. They are guarded by the mutex of the proxy.
	answers []*redisAnswer
}

// redisAnswer is the answer to some commands, which are not sent to the server.
type redisAnswer struct {
	match func(command string) bool
	text  string
	left  int
}

// NewRedisProxy starts a proxy in front of the server with this URL, and closes it at the end of the test.
func NewRedisProxy(t testing.TB, serverURL string) *RedisProxy {
	t.Helper()
	p, err := StartRedisProxy(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	return p
}

// StartRedisProxy starts a proxy in front of the server with this URL. The caller closes the proxy.
func StartRedisProxy(serverURL string) (p *RedisProxy, err error) {
	p = new(RedisProxy)
	p.Proxy, err = startProxy(serverURL, p.carryRedis)
	return p, err
}

// Answer makes the next matching commands, as many as times, fail with an error of the server, as in "LOADING
// Redis is loading the dataset in memory". They are not sent, so that their work is certainly not done.
func (p *RedisProxy) Answer(match func(command string) bool, text string, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, &redisAnswer{match: match, text: text, left: times})
}

// Disarm removes the traps that have not caught a command, and all further answers.
func (p *RedisProxy) Disarm() {
	p.Proxy.Disarm()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = nil
}

// Delay delays all replies by a time, until it is called again.
func (p *RedisProxy) Delay(by time.Duration) { p.delay.Store(int64(by)) }

// Throttle limits the replies of each connection to a number of
// bytes per second, until it is called again; 0 is no limit.
func (p *RedisProxy) Throttle(bytes int) { p.rate.Store(int64(bytes)) }

// Commands returns the number of commands that all clients have sent since the start of the proxy,
// except for commands that belong to the connection itself. RoundTrips is how often clients had to
// wait for replies: commands that are sent together, or while another reply is awaited, count as one.
func (p *RedisProxy) Commands() int { return int(p.commands.Load()) }

// answerTo returns the answer to a command that is not sent, if there is one.
func (p *RedisProxy) answerTo(command string) (text string, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.answers {
		if each.left > 0 && each.match(command) {
			each.left--
			return each.text, true
		}
	}
	return "", false
}

// redisLink is a connection on which the proxy distinguishes replies.
type redisLink struct {
	*link
	proxy *RedisProxy
	// raw means that the following bytes are not commands and replies.
	raw atomic.Bool

	writing sync.Mutex // guards writes to the client; held until they are recorded

	mu sync.Mutex
	// awaited are the commands that were sent and whose replies the client does not have
	// yet. For the first ones, as many as replied, the server's replies have arrived.
	awaited []redisCommand
	replied int
	// idle is signalled when the client has received replies.
	idle *sync.Cond
}

// redisCommand is a command whose reply is awaited.
type redisCommand struct {
	caught  *trap // nil if no trap has caught it
	counted bool  // the command does not belong to the connection
}

// carryRedis carries commands and replies until one side ends.
func (p *RedisProxy) carryRedis(l *link) {
	r := &redisLink{link: l, proxy: p}
	r.idle = sync.NewCond(&r.mu)
	var replies sync.WaitGroup
	replies.Go(func() {
		r.close(r.carryReplies())
		r.mu.Lock()
		r.awaited, r.replied = nil, 0
		r.idle.Broadcast()
		r.mu.Unlock()
	})
	r.close(r.carryCommands())
	replies.Wait()
}

// carryCommands passes on the client's commands.
func (r *redisLink) carryCommands() error {
	in := bufio.NewReader(r.client)
	together := false // with a counted command
	for {
		together = together && in.Buffered() > 0
		var raw []byte
		value, err := readRESP(in, &raw)
		if err != nil {
			return err
		}
		counted, err := r.pass(raw, commandText(value), together)
		if err != nil {
			return err
		}
		together = together || counted
		if r.raw.Load() {
			_, err := io.Copy(r.server, in)
			return err
		}
	}
}

// commandText returns the words of a command, separated by spaces.
func commandText(value any) string {
	values, _ := value.([]any)
	words := make([]string, len(values))
	for i, each := range values {
		words[i], _ = each.(string)
	}
	return strings.Join(words, " ")
}

// pass sends a command to the server, unless it is to be lost or is answered here. It reports whether it was counted.
func (r *redisLink) pass(raw []byte, command string, together bool) (counted bool, err error) {
	name, _, _ := strings.Cut(strings.ToUpper(command), " ")
	if counted = !belongsToConnection(name); counted {
		r.proxy.commands.Add(1)
		if !together && !r.awaits() {
			r.proxy.roundTrips.Add(1)
		}
	}
	if text, found := r.proxy.answerTo(command); found {
		r.awaitIdle()
		return counted, r.write([]byte("-" + text + "\r\n"))
	}
	caught := r.proxy.catch(command)
	if caught != nil && caught.fate == cutRequest {
		r.proxy.sprung.Add(1)
		return counted, net.ErrClosed
	}
	switch {
	case name == "PSYNC" || name == "SYNC" || name == "MONITOR":
		r.raw.Store(true)
	case !strings.HasSuffix(name, "SUBSCRIBE"): // replies to these look like messages
		r.mu.Lock()
		r.awaited = append(r.awaited, redisCommand{caught, counted})
		r.mu.Unlock()
	}
	_, err = r.server.Write(raw)
	return counted, err
}

// belongsToConnection reports whether clients send a command automatically, to begin or keep a connection.
func belongsToConnection(name string) bool {
	names := []string{"HELLO", "AUTH", "CLIENT", "SELECT", "PING", "COMMAND", "CLUSTER", "READONLY", "ROLE"}
	return slices.Contains(names, name)
}

// awaits reports whether a counted command has no reply yet. A client that has just read
// a reply can be faster than its recording, so that awaits waits for the recording.
func (r *redisLink) awaits() bool {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.awaited, func(c redisCommand) bool { return c.counted })
}

// awaitIdle waits until all sent commands are answered, so that an answer keeps its place in the order.
func (r *redisLink) awaitIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.awaited) > 0 {
		r.idle.Wait()
	}
}

func (r *redisLink) write(text []byte) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	_, err := r.client.Write(text)
	return err
}

// carryReplies passes on the server's replies and messages. Those that arrived together are sent together.
func (r *redisLink) carryReplies() error {
	in := bufio.NewReaderSize(r.server, 32<<10)
	var out []byte
	for {
		if _, err := in.Peek(1); err != nil {
			return err
		}
		if r.raw.Load() {
			_, err := io.Copy(r.client, in)
			return err
		}
		begin := len(out)
		value, err := readRESP(in, &out)
		if err != nil {
			return err
		}
		if !isMessage(out[begin], value) {
			if err := r.decide(r.answered()); err != nil {
				return err
			}
		}
		if in.Buffered() == 0 {
			if err := r.deliver(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
}

// answered assigns a reply to the oldest command without one, and returns the trap that has caught the command.
func (r *redisLink) answered() *trap {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replied == len(r.awaited) {
		return nil // the server reports why it ends the connection
	}
	r.replied++
	return r.awaited[r.replied-1].caught
}

// deliver sends replies to the client, after the delay.
func (r *redisLink) deliver(out []byte) error {
	if delay := r.proxy.delay.Load(); delay > 0 {
		select {
		case <-time.After(time.Duration(delay)):
		case <-r.closed:
		}
	}
	last, err := r.trickle(out)
	if err != nil {
		return err
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	if _, err := r.client.Write(last); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaited, r.replied = r.awaited[r.replied:], 0
	r.idle.Broadcast()
	return nil
}

// trickle writes to the client at the permitted rate. It returns the last piece when it is due.
func (r *redisLink) trickle(out []byte) (last []byte, err error) {
	const pieces = 20 // a second
	rate := int(r.proxy.rate.Load())
	if rate == 0 {
		return out, nil
	}
	for piece := range slices.Chunk(out, max(1, rate/pieces)) {
		if err := r.write(last); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Second * time.Duration(len(piece)) / time.Duration(rate)):
		case <-r.closed:
		}
		last = piece
	}
	return last, nil
}

// isMessage reports whether the server sent a value unasked,
// instead of as a reply: to a subscriber, or about a subscription.
func isMessage(kind byte, value any) bool {
	if kind == '>' {
		return true
	}
	values, _ := value.([]any)
	if kind != '*' || len(values) < 3 {
		return false
	}
	name, _ := values[0].(string)
	return strings.HasSuffix(name, "message") || strings.HasSuffix(name, "subscribe")
}
