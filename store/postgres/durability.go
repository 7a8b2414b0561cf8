package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const selectDurability = `SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
	(SELECT count(*) FROM pg_stat_replication)`

// checkDurability says what the server's settings mean for commits that it has acknowledged, before anybody relies on them.
func (s *Store) checkDurability(ctx context.Context) error {
	var standby bool
	var fsync, pages, synchronous, names string
	var replicas int
	err := s.own.QueryRow(ctx, selectDurability).Scan(&standby, &fsync, &pages, &synchronous, &names, &replicas)
	switch {
	case err != nil:
		return err
	case standby:
		return ErrStandby
	}
	risks := durabilityRisks(fsync, pages, synchronous, names, replicas)
	if len(risks) == 0 {
		return nil
	}
	if s.options.strict {
		return fmt.Errorf("the server can lose commits that it has acknowledged: %s", strings.Join(risks, "; "))
	}
	for _, risk := range risks {
		s.logger.WarnContext(ctx, "onceward: the server can lose commits that it has acknowledged, and work would then be done twice", "because", risk)
	}
	return nil
}

// durabilityRisks lists what can be lost, and when.
func durabilityRisks(fsync, pages, synchronous, standbyNames string, replicas int) (risks []string) {
	if fsync != "on" {
		risks = append(risks, "fsync is "+fsync+": a crash of the machine can lose everything")
	}
	if pages != "on" {
		risks = append(risks, "full_page_writes is "+pages+": a crash of the machine can damage pages")
	}
	if synchronous == "off" {
		risks = append(risks, "synchronous_commit is off: a crash loses the last commits")
	}
	if replicas > 0 && (standbyNames == "" || synchronous == "local" || synchronous == "off") {
		risks = append(risks, fmt.Sprintf("there are %d standbys and none is waited for (synchronous_standby_names is %q, synchronous_commit is %s): a fail-over loses the last commits",
			replicas, standbyNames, synchronous))
	}
	return risks
}

// ErrStandby is returned when the server is a standby, which is behind the one that decides.
var ErrStandby = errors.New("postgres: this server is a standby: it is behind the one that decides")
