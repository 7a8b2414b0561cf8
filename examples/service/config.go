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

// config is the configuration from the environment. Secrets are neither in files
// of the repository nor in arguments, which all users of a machine can see.
type config struct {
	database        string // DATABASE_URL: for the service's role, with pool_max_conns and connect_timeout
	listen, admin   string // LISTEN and ADMIN_LISTEN: the second must not be public
	provider        string // PROVIDER_URL
	warehouse       string // WAREHOUSE_URL: receives an event for each order
	warehouseSecret string // WAREHOUSE_SECRET: whsec_…, signs these events
	secret          []byte // ONCEWARD_SECRET: 16 random bytes or more, the same on all replicas
	oldSecrets      [][]byte
	tokens          map[string]string // TOKENS: a JSON object of tenants by their bearer tokens
	drain           time.Duration     // DRAIN: how long load balancers take to notice that a replica is not ready
	calling         time.Duration     // CALL_TIMEOUT: how long a call to the provider may take
}

// readConfig reads the environment. Its error names all missing variables.
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
	if old := os.Getenv("ONCEWARD_OLD_SECRET"); old != "" { // during the rotation of a secret
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

// tenant returns the tenant of a request. It comes from authentication, never from the body.
func (c *config) tenant(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if tenant := c.tokens[token]; tenant != "" && strings.EqualFold(scheme, "Bearer") {
		return tenant, nil
	}
	return "", onceward.Unauthenticated("Bearer")
}
