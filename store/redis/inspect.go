package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// settings are the settings of a server that determine what it may lose.
type settings map[string]string

// inspected are the settings to read. INFO contains some of them, for servers on which CONFIG does not show them.
var inspected = []string{
	"appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write",
}

// inspection is the state of the inspections of the servers' settings.
type inspection struct {
	mode    mode
	options options

	mu     sync.Mutex
	last   time.Time // when they were last read again
	logged []string
}

// inspectInterval is the least time between two reads of the settings of servers in use.
const inspectInterval = time.Minute

// inspect refuses servers on which the guarantees of the store do not hold, and logs what a crash or a fail-over can
// lose.
func (s *Store) inspect(ctx context.Context) error {
	i := &s.inspection
	if i.mode == modeCluster && s.sender.client.Mode() != rueidis.ClientModeCluster {
		return errors.New("redis: the server is not part of a cluster: use a redis:// URL")
	}
	nodes, err := s.sender.primaries(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, node := range nodes {
		found, err := s.sender.settings(ctx, node)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if err := found.check(i.mode, &i.options); err != nil {
			return err
		}
		s.warn(ctx, found)
	}
	if len(failed) == len(nodes) {
		return errors.Join(failed...)
	}
	return s.mayWork(ctx) // a cluster works without one of its primaries
}

// mayWork returns an error if the user may not run scripts, or not on the keys of the store.
func (s *Store) mayWork(ctx context.Context) error {
	key := s.names.holding(indexOpen)[0].index[indexOpen]
	clock := clockScript.command(s.sender.client.B(), true, []string{key}, nil)
	err := s.sender.ask(ctx, s.sender.client, clock)[0].Error()
	if refused, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(refused.Error(), "NOPERM") {
		return fmt.Errorf("redis: the user of the URL may not run scripts on keys that begin with %q: %w",
			s.names.prefix+":", unavailable(err))
	}
	return nil
}

// inspectAgain reads the settings of the servers from time to time: after a fail-over another server is in use, and
// settings can be changed. It never refuses a server.
func (s *Store) inspectAgain(ctx context.Context) {
	i := &s.inspection
	i.mu.Lock()
	due := time.Since(i.last) >= inspectInterval
	if due {
		i.last = time.Now()
	}
	i.mu.Unlock()
	if !due {
		return
	}
	nodes, _ := s.sender.primaries(ctx) // servers that do not answer are reported by other calls
	for _, node := range nodes {
		if found, err := s.sender.settings(ctx, node); err == nil {
			if err := found.evicts(&i.options); err != nil {
				s.logOnce(ctx, slog.LevelError, err.Error())
			}
			s.warn(ctx, found)
		}
	}
}

// warn logs what a crash or a fail-over can lose.
func (s *Store) warn(ctx context.Context, found settings) {
	for _, risk := range found.risks(s.inspection.mode, &s.inspection.options) {
		s.logOnce(ctx, slog.LevelWarn, "redis: "+risk)
	}
}

// logOnce logs a text once.
func (s *Store) logOnce(ctx context.Context, level slog.Level, text string) {
	i := &s.inspection
	i.mu.Lock()
	defer i.mu.Unlock()
	if !slices.Contains(i.logged, text) {
		i.logged = append(i.logged, text)
		s.log.LogAttrs(ctx, level, text)
	}
}

// settings returns the settings of one server, and its INFO.
func (s *sender) settings(ctx context.Context, node rueidis.Client) (settings, error) {
	results := s.ask(ctx, node, node.B().Info().Build(), node.B().ConfigGet().Parameter(inspected...).Build())
	text, err := results[0].ToString()
	if err != nil {
		return nil, fmt.Errorf("redis: INFO, which distinguishes a replica from a primary: %w", unavailable(err))
	}
	found := info(text)
	config, err := results[1].AsStrMap()
	if _, refused := rueidis.IsRedisErr(err); refused || err == nil && len(config) == 0 {
		found.fromInfo()
		return found, nil // some services do not let their users see the configuration
	}
	if err != nil {
		return nil, unavailable(err)
	}
	for name, value := range config {
		found[name] = value
	}
	return found, nil
}

// info parses the INFO of a server.
func info(text string) settings {
	found := settings{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}

// fromInfo takes the settings that INFO contains.
func (f settings) fromInfo() {
	f["maxmemory-policy"] = f["maxmemory_policy"]
	if f["aof_enabled"] == "0" {
		f["appendonly"] = "no"
	}
	f["hidden"] = "yes"
}

// check refuses a server that cannot be the store.
func (f settings) check(m mode, o *options) error {
	switch {
	case f["role"] == "slave":
		return errors.New("redis: the server is a replica: a store needs the primary, or the sentinels that know it " +
			"(redis+sentinel://)")
	case f.older(7, 0):
		return fmt.Errorf("redis: the server is version %s: the store needs Redis 7.0 or Valkey", f["redis_version"])
	case o.acks.fsynced && f.older(7, 2):
		return fmt.Errorf("redis: the server is version %s: WithAOFAcks needs Redis 7.2 or Valkey", f["redis_version"])
	case f["cluster_enabled"] == "1" && m != modeCluster:
		return errors.New("redis: the server is part of a cluster: use a redis+cluster:// URL")
	case o.syncOnly && f.replicas() < o.acks.replicas:
		return fmt.Errorf("redis: the server has %d replicas, and writes are to wait for %d (WithSyncReplicasOnly): a fail-over "+
			"would forget what was acknowledged", f.replicas(), o.acks.replicas)
	default:
		return f.evicts(o)
	}
}

// replicas returns how many replicas follow the server.
func (f settings) replicas() int {
	n, _ := strconv.Atoi(f["connected_slaves"]) // zero if the number is not shown
	return n
}

// evicts returns an error if the server removes records.
func (f settings) evicts(o *options) error {
	policy := f["maxmemory-policy"]
	if policy == "noeviction" || policy == "" || o.eviction {
		return nil
	}
	return fmt.Errorf("redis: the server removes keys when its memory is full (maxmemory-policy %s), and an operation "+
		"whose record was removed is executed again: set maxmemory-policy noeviction, or accept it by "+
		"redis.WithEviction()", policy)
}

// older reports whether the server is older than a version.
func (f settings) older(major, minor int) bool {
	parts := strings.SplitN(f["redis_version"], ".", 3)
	if len(parts) < 2 {
		return false
	}
	first, err1 := strconv.Atoi(parts[0])
	second, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (first < major || first == major && second < minor)
}

// risks returns what the settings can lose: an operation whose record is lost is executed again, and one in progress is
// forgotten.
func (f settings) risks(m mode, o *options) (risks []string) {
	add := func(on bool, format string, args ...any) {
		if on {
			risks = append(risks, fmt.Sprintf(format, args...))
		}
	}
	appendonly, fsync := f["appendonly"] == "yes", f["appendfsync"]
	policy := f["maxmemory-policy"]
	add(f["appendonly"] == "no", "appendonly is off: a crash or a restart of the server loses every record since its "+
		"last snapshot (save %q), and what they protected may be executed a second time; set appendonly yes and "+
		"appendfsync always", f["save"])
	add(appendonly && fsync == "everysec", "appendfsync is everysec: a power loss loses about the last second of "+
		"records, and what they protected may be executed a second time; set appendfsync always")
	add(appendonly && fsync == "everysec" && o.acks.fsynced && f.older(8, 0),
		"a server before Redis 8.0 may acknowledge to WAITAOF what is not on its disk yet, "+
			"where appendfsync is everysec; set appendfsync always")
	add(appendonly && fsync == "no", "appendfsync is no: a power loss loses the records of the last half minute or so, "+
		"and what they protected may be executed a second time; set appendfsync always")
	add(f["hidden"] != "" && f["appendonly"] != "no", "the server does not show how it writes to its disk (CONFIG GET is "+
		"refused): without appendfsync always it can lose records")
	add(o.eviction && policy != "noeviction" && policy != "",
		"records are removed when the memory is full (maxmemory-policy %s), "+
			"and what they protected is executed a second time", policy)
	replicas := f["connected_slaves"] != "0" && f["connected_slaves"] != "" || m != modeSingle
	add(replicas && !o.acks.wanted(), "replication is asynchronous: a fail-over can forget records that were "+
		"acknowledged, and what they protected may be executed a second time; redis.WithReplicas makes that less likely")
	add(replicas && o.acks.wanted(), "a fail-over can forget records that were acknowledged although writes wait for "+
		"replicas, because one that is promoted need not have them")
	return risks
}
