package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// settings are those of a server that decide what it may lose.
type settings map[string]string

// The settings that are read. What CONFIG does not tell, INFO does in part.
var inspected = []string{
	"appendonly", "appendfsync", "save", "maxmemory-policy", "min-replicas-to-write",
}

// inspect refuses servers on which the promises of the store do not hold, and tells what a crash or a fail-over can lose.
func (s *Store) inspect(ctx context.Context, m mode, o *options) error {
	if m == modeCluster && s.sender.client.Mode() != rueidis.ClientModeCluster {
		return errors.New("redis: the server is not part of a cluster: use a redis:// URL")
	}
	nodes, err := s.sender.primaries(ctx)
	if err != nil {
		return err
	}
	var said []string
	var failed []error
	for _, node := range nodes {
		found, err := s.sender.settings(ctx, node)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if err := found.check(m, o); err != nil {
			return err
		}
		for _, risk := range found.risks(m, o) {
			if !slices.Contains(said, risk) {
				said = append(said, risk)
				o.log.LogAttrs(ctx, slog.LevelWarn, "redis: "+risk)
			}
		}
	}
	if len(failed) == len(nodes) {
		return errors.Join(failed...)
	}
	return nil // a cluster serves without one of its primaries
}

// settings returns the settings of one server, and what it says of itself.
func (s *sender) settings(ctx context.Context, node rueidis.Client) (settings, error) {
	results := s.ask(ctx, node, node.B().Info().Build(), node.B().ConfigGet().Parameter(inspected...).Build())
	text, err := results[0].ToString()
	if err != nil {
		return nil, fmt.Errorf("redis: INFO, which tells a replica from a primary: %w", unavailable(err))
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

// info reads what a server says of itself.
func info(text string) settings {
	found := settings{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}

// fromInfo takes what it can from what the server says of itself.
func (f settings) fromInfo() {
	f["maxmemory-policy"] = f["maxmemory_policy"]
	if f["aof_enabled"] == "0" {
		f["appendonly"] = "no"
	}
	f["hidden"] = "yes"
}

// check refuses a server that cannot be the store.
func (f settings) check(m mode, o *options) error {
	policy := f["maxmemory-policy"]
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
	case policy != "noeviction" && policy != "" && !o.eviction:
		return fmt.Errorf("redis: the server removes keys when its memory is full (maxmemory-policy %s), and an operation "+
			"whose record was removed is executed again: set maxmemory-policy noeviction, or accept it by "+
			"redis.WithEviction()", policy)
	default:
		return nil
	}
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

// risks are what the settings can lose: an operation whose record is lost is executed again, and one in progress is
// forgotten.
func (f settings) risks(m mode, o *options) (risks []string) {
	say := func(on bool, format string, args ...any) {
		if on {
			risks = append(risks, fmt.Sprintf(format, args...))
		}
	}
	appendonly, fsync := f["appendonly"] == "yes", f["appendfsync"]
	policy := f["maxmemory-policy"]
	say(f["appendonly"] == "no", "appendonly is off: a crash or a restart of the server loses every record since its "+
		"last snapshot (save %q), and what they protected may be executed a second time; set appendonly yes and "+
		"appendfsync always", f["save"])
	say(appendonly && fsync == "everysec", "appendfsync is everysec: a power loss loses about the last second of records, "+
		"and what they protected may be executed a second time; set appendfsync always")
	say(appendonly && fsync == "everysec" && o.acks.fsynced && f.older(8, 0), "a server before Redis 8.0 may acknowledge to "+
		"WAITAOF what is not on its disk yet, where appendfsync is everysec; set appendfsync always")
	say(appendonly && fsync == "no", "appendfsync is no: a power loss loses the records of the last half minute or so, and "+
		"what they protected may be executed a second time; set appendfsync always")
	say(f["hidden"] != "" && f["appendonly"] != "no", "the server does not tell how it writes to its disk (CONFIG GET is "+
		"refused): without appendfsync always it can lose records")
	say(policy != "noeviction" && policy != "", "records are removed when the memory is full (maxmemory-policy %s), and what "+
		"they protected is executed a second time", policy)
	replicas := f["connected_slaves"] != "0" && f["connected_slaves"] != "" || m != modeSingle
	say(replicas && !o.acks.wanted(), "replication is asynchronous: a fail-over can forget records that were acknowledged, "+
		"and what they protected may be executed a second time; redis.WithReplicas makes that less likely")
	say(replicas && o.acks.wanted(), "a fail-over can forget records that were acknowledged although writes wait for "+
		"replicas, because one that is promoted need not have them")
	return risks
}
