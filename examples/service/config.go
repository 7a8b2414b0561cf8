package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/onceward/onceward"
)

// config is what the environment says. Secrets are not in files of the repository, and not in arguments, which all
// users of a machine can see.
type config struct {
	database        string // DATABASE_URL: of the service's role, with pool_max_conns and connect_timeout
	listen, admin   string // LISTEN and ADMIN_LISTEN: the second is not for the world
	provider        string // PROVIDER_URL
	warehouse       string // WAREHOUSE_URL: gets an event for each order
	warehouseSecret string // WAREHOUSE_SECRET: whsec_…, signs those events
	secret          []byte // ONCEWARD_SECRET: 16 random bytes or more, the same on all replicas
	oldSecrets      [][]byte
	tokens          map[string]string // TOKENS: a JSON object of tenants by their bearer tokens
	drain           time.Duration     // DRAIN: how long load balancers take to see that a replica is not ready
	calling         time.Duration     // CALL_TIMEOUT: how long a call to the provider may take
}

// readConfig names everything that is missing at once.
func readConfig() (config, error) {
	var missing []string
	required := func(name string) string {
		value := os.Getenv(name)
		if value == "" {
			missing = append(missing, name)
		}
		return value
	}
	c := config{
		database: required("DATABASE_URL"), provider: required("PROVIDER_URL"),
		warehouse: required("WAREHOUSE_URL"), warehouseSecret: required("WAREHOUSE_SECRET"),
		secret: []byte(required("ONCEWARD_SECRET")),
		listen: optional("LISTEN", ":8080"), admin: optional("ADMIN_LISTEN", ":8081"),
	}
	tokens := required("TOKENS")
	if len(missing) > 0 {
		return c, fmt.Errorf("the environment lacks %s", strings.Join(missing, ", "))
	}
	if old := os.Getenv("ONCEWARD_OLD_SECRET"); old != "" { // while a secret is rotated
		c.oldSecrets = [][]byte{[]byte(old)}
	}
	var err error
	if c.drain, err = time.ParseDuration(optional("DRAIN", "5s")); err != nil {
		return c, fmt.Errorf("DRAIN: %w", err)
	}
	if c.calling, err = time.ParseDuration(optional("CALL_TIMEOUT", "10s")); err != nil {
		return c, fmt.Errorf("CALL_TIMEOUT: %w", err)
	}
	if err := json.Unmarshal([]byte(tokens), &c.tokens); err != nil || c.tokens[""] != "" {
		return c, errors.Join(errors.New(`TOKENS must be JSON such as {"token":"tenant"}, without an empty token`), err)
	}
	return c, nil
}

func optional(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// tenant says whose key it is: from authentication, never from the body.
func (c *config) tenant(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if tenant := c.tokens[token]; tenant != "" && strings.EqualFold(scheme, "Bearer") {
		return tenant, nil
	}
	return "", onceward.Unauthenticated("Bearer")
}
