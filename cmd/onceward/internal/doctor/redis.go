package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	redisstore "github.com/onceward/onceward/store/redis"
	"github.com/onceward/onceward/storeurl"
)

var redisTrials = []trial[*redis]{
	{Check{
		"redis/version", "Redis 7.0 or later, or Valkey, on each server.",
		"Older servers lack what the store's scripts need.", "S1",
	}, tryRedisVersion},
	{Check{
		"redis/primary", "Each server in use is a primary, of the kind that the URL names.",
		"A replica lags, and takes no writes.", "S1, L2 [12, 13]",
	}, tryRedisRole},
	{Check{
		"redis/exclusion",
		"Of many who SET NX one key at once, on two connections, one succeeds, and its value stays.",
		"Two owners of one key both execute.", "S1, I1 [48]",
	}, tryRedisExclusion},
	{Check{
		"redis/scripts", "Scripts run on the store's keys, and see what was written.",
		"Without scripts nothing can be reserved.", "S1, L2",
	}, tryRedisScripts},
	{Check{
		"redis/eviction", "`maxmemory-policy` is noeviction, and nothing was evicted.",
		"An operation whose record was evicted is executed again.", "I1, I12",
	}, tryRedisEviction},
	{Check{
		"redis/memory", "Memory is left below `maxmemory`.",
		"A full server takes no new operations: they get 503.", "L2",
	}, tryRedisMemory},
	{Check{
		"redis/persistence", "The append-only file is on, written before each answer, and free of errors.",
		"A crash or restart loses acknowledged records: their operations are executed again.", "E7, I1, I2 [11]",
	}, tryRedisPersistence},
	{Check{
		"redis/write-time", "Writes are quick, beside looks, and the disk has kept up.",
		"With `appendfsync always` a disk that stalls holds up all writes.", "E7, L2 [11]",
	}, tryRedisWriteTime},
	{Check{
		"redis/replicas",
		"If replicas follow: the primary stops without them (`min-replicas-to-write`), and they answer WAIT in " +
			"time.",
		"Replication is asynchronous: a fail-over forgets what the replica lacks.", "I1, I2 [12]",
	}, tryRedisReplicas},
	{Check{
		"redis/cluster",
		"In a cluster: its state is ok, all slots are covered, and a missing part stops only its own keys.",
		"Keys of an unserved slot get 503.", "L2 [12]",
	}, tryRedisCluster},
	{Check{
		"redis/clock", "The servers' clocks agree with this machine's and each other, and go forward.",
		"The server in use counts leases and attempt tokens. In a cluster, and after a fail-over, that changes.",
		"S3, S7 [4, 5]",
	}, tryRedisClock},
	{Check{
		"redis/pubsub", "A message reaches another subscribed connection.",
		"Otherwise waiting duplicates must look for themselves.", "O2 [48]",
	}, tryRedisPubSub},
	{Check{
		"redis/privileges", "The user is the store's own, with what docs/redis.md lists.",
		"Anyone who reaches the server, or has this user's password, can read, change and remove all records.",
		"I7, I9, I12",
	}, tryRedisPrivileges},
}

// redis is the server or servers to examine.
type redis struct {
	client rueidis.Client
	// other is a second client, such as another node of the service has.
	other   rueidis.Client
	cluster bool
	// named means that the URL names a cluster. The client accepts other servers too.
	named   bool
	prefix  string
	address string // the first of the URL
	nodes   []redisNode
	// slowWrite is the time from which a write counts as slow; arrival is how long a message may take.
	slowWrite, arrival time.Duration
	// left is the keys to remove at the end.
	left []string
}

// redisNode is one server, with its information and its configuration.
type redisNode struct {
	address string
	client  rueidis.Client
	info    map[string]string
	config  map[string]string // nil if it may not be read
}

func examineRedis(ctx context.Context, at storeurl.Location, c Config) ([]Result, error) {
	option, err := redisstore.ClientOption(at.URL)
	if err != nil {
		return nil, unusable(err)
	}
	p := &redis{
		prefix: at.Prefix, address: option.InitAddress[0], named: strings.Contains(at.URL, "+cluster://"),
		slowWrite: c.slowWrite, arrival: c.arrival,
	}
	if p.prefix == "" {
		p.prefix = "onceward"
	}
	defer p.close()
	meet := func(ctx context.Context) error { return p.meet(ctx, option) }
	if err := within(ctx, c.Timeout, meet); err != nil {
		return nil, unavailable(err)
	}
	return examine(ctx, c.Timeout, p, redisTrials), nil
}

// meet connects twice, and reads the information of each primary.
func (p *redis) meet(ctx context.Context, option rueidis.ClientOption) (err error) {
	option.ClientName = "onceward-doctor"
	if p.client, err = rueidis.NewClient(option); err != nil {
		return err
	}
	if p.other, err = rueidis.NewClient(option); err != nil {
		return err
	}
	p.cluster = p.client.Mode() == rueidis.ClientModeCluster
	nodes := map[string]rueidis.Client{p.address: p.client}
	if p.cluster {
		nodes = p.client.Nodes()
	}
	var failed error
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		node, err := newRedisNode(ctx, address, nodes[address])
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if !p.cluster || node.info["role"] == "master" {
			p.nodes = append(p.nodes, node)
		}
	}
	if len(p.nodes) == 0 {
		return errors.Join(errors.New("no primary answers"), failed)
	}
	return nil
}

func newRedisNode(ctx context.Context, address string, client rueidis.Client) (redisNode, error) {
	text, err := client.Do(ctx, client.B().Info().Build()).ToString()
	if err != nil {
		return redisNode{}, err
	}
	node := redisNode{address: address, client: client, info: fields(text)}
	config, err := client.Do(ctx, client.B().ConfigGet().Parameter("*").Build()).AsStrMap()
	if err == nil && len(config) > 0 {
		node.config = config
	}
	return node, nil
}

// fields parses lines of names and values.
func fields(text string) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}

// key returns a new key of the doctor's own, with the prefix of the store, because its
// user may write no others. The key expires in a minute, if it is not removed before.
func (p *redis) key() string {
	key := p.prefix + ":doctor:" + rand.Text()
	p.left = append(p.left, key)
	return key
}

// keyLife is the longest life of a key of the doctor.
const keyLife = 60 // seconds

// close removes the doctor's keys, even after an interrupt.
func (p *redis) close() {
	if p.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		for _, key := range p.left {
			_ = p.client.Do(ctx, p.client.B().Del().Key(key).Build()).Error() // it expires automatically
		}
		p.client.Close()
	}
	if p.other != nil {
		p.other.Close()
	}
}

// each calls look for every server.
func (p *redis) each(r *Result, look func(node redisNode, on string)) {
	for _, node := range p.nodes {
		on := ""
		if len(p.nodes) > 1 {
			on = " on " + node.address
		}
		look(node, on)
	}
}

// number returns a number in the server's information, or 0 if it is missing.
func (n redisNode) number(name string) int64 {
	value, _ := strconv.ParseInt(n.info[name], 10, 64) // 0 if the value is missing
	return value
}

// setting returns a value of the server's configuration; seen is false if it may not be read.
func (n redisNode) setting(name string) (value string, seen bool) {
	value, seen = n.config[name]
	return value, seen
}

func tryRedisVersion(_ context.Context, p *redis, r *Result) error {
	p.each(r, func(node redisNode, on string) {
		version := node.info["redis_version"]
		r.saw("%s%s", version, on)
		if major, _, ok := strings.Cut(version, "."); ok {
			if n, err := strconv.Atoi(major); err == nil && n < 7 {
				r.find(Broken, "use Redis 7.0 or later, or Valkey", "the server%s is version %s", on, version)
			}
		}
	})
	return nil
}

func tryRedisRole(_ context.Context, p *redis, r *Result) error {
	p.each(r, func(node redisNode, on string) {
		r.saw("%s%s", node.info["role"], on)
		if node.info["role"] != "master" {
			r.find(Broken, "name the primary, or the sentinels that know it (redis+sentinel://)",
				"the server%s is a replica of %s:%s", on,
				node.info["master_host"], node.info["master_port"])
		}
		if node.info["cluster_enabled"] == "1" && !p.cluster {
			r.find(Broken, "use a redis+cluster:// URL", "the server%s is part of a cluster", on)
		}
		if p.named && !p.cluster {
			r.find(Broken, "use a redis:// URL, or name the nodes of the cluster", "the server%s is not part of a cluster, and "+
				"the store refuses to open it by this URL", on)
		}
	})
	return nil
}

// contenders is the number of clients that write one key at once.
const contenders = 16

// tryRedisExclusion sets one key many times at once.
func tryRedisExclusion(ctx context.Context, p *redis, r *Result) error {
	const rounds = 5
	for range rounds {
		key := p.key()
		type claim struct {
			who string
			got bool
			err error
		}
		claims := make(chan claim, contenders)
		for i := range contenders {
			client, who := p.client, "contender "+strconv.Itoa(i)
			if i%2 == 1 {
				client = p.other
			}
			go func() {
				err := client.Do(ctx, client.B().Set().Key(key).Value(who).Nx().ExSeconds(keyLife).Build()).Error()
				claims <- claim{who, err == nil, err}
			}()
		}
		var winners []string
		var failed error
		for range contenders {
			c := <-claims
			if c.got {
				winners = append(winners, c.who)
			} else if !rueidis.IsRedisNil(c.err) {
				failed = c.err
			}
		}
		if failed != nil {
			return failed
		}
		if len(winners) != 1 {
			r.find(Broken, "use Redis itself: what answers here is a proxy, a cache or a server that does not keep what it says",
				"%d of %d who set one key at once, if it was not there, were told that they did", len(winners), contenders)
			return nil
		}
		held, err := p.other.Do(ctx, p.other.B().Get().Key(key).Build()).ToString()
		if err != nil || held != winners[0] {
			r.find(Broken, "use Redis itself, and its primary: what is written is not what is read",
				"%s was told that it has the key, and another connection reads %q (%v)", winners[0], held, err)
			return nil
		}
	}
	r.saw("one of %d each time, in %d rounds", contenders, rounds)
	return nil
}

// probeScript writes and reads back. It starts like the store's scripts, so that it is refused where they are.
const probeScript = "#!lua\nredis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])\nreturn redis.call('GET', KEYS[1])"

func tryRedisScripts(ctx context.Context, p *redis, r *Result) error {
	key, value := p.key(), rand.Text()
	got, err := p.client.Do(ctx, p.client.B().Eval().Script(probeScript).Numkeys(1).Key(key).
		Arg(value, strconv.Itoa(keyLife)).Build()).ToString()
	switch refused, ok := rueidis.IsRedisErr(err); {
	case ok:
		r.find(Broken, "let the user run scripts (+@scripting on "+p.prefix+":*), on a server that has them",
			"a script is refused: %s", refused.Error())
	case err != nil:
		return err
	case got != value:
		r.find(Broken, "use Redis itself", "a script that wrote %q read %q", value, got)
	default:
		r.saw("a script wrote and read a key")
	}
	return nil
}

func tryRedisEviction(_ context.Context, p *redis, r *Result) error {
	p.each(r, func(node redisNode, on string) {
		policy := node.info["maxmemory_policy"]
		if set, seen := node.setting("maxmemory-policy"); seen {
			policy = set
		}
		r.saw("%s%s", policy, on)
		if policy != "noeviction" && policy != "" {
			r.find(Broken, "CONFIG SET maxmemory-policy noeviction, and in the configuration file", "maxmemory-policy%s is %s",
				on, policy)
		}
		if n := node.number("evicted_keys"); n > 0 {
			r.find(Weak, "compare the provider's ledger since the server was started (ledger reconciliation), and raise "+
				"maxmemory",
				"the server%s has evicted %d keys since it was started, and records may be among them", on, n)
		}
	})
	return nil
}

// fullMemory is the part of maxmemory that may be used.
const fullMemory = 0.9

func tryRedisMemory(_ context.Context, p *redis, r *Result) error {
	p.each(r, func(node redisNode, on string) {
		used, most := node.number("used_memory"), node.number("maxmemory")
		r.saw("%d MB of %d%s (0: no limit)", used>>20, most>>20, on)
		if most > 0 && float64(used) > fullMemory*float64(most) {
			r.find(Weak, "raise maxmemory, or keep records for a shorter time", "%d of %d MB%s are in use", used>>20, most>>20,
				on)
		}
	})
	return nil
}
