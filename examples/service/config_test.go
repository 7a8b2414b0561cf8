package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTenantNeedsBearer(t *testing.T) {
	t.Parallel()
	c := config{tokens: map[string]string{"token": "tenant"}}
	for header, want := range map[string]string{
		"Bearer token": "tenant", "bearer token": "tenant",
		"token": "", " token": "", "Basic token": "", "Bearer": "", "Bearer ": "", "Bearer other": "", "": "",
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set("Authorization", header)
		if tenant, err := c.tenant(r); tenant != want || (err == nil) != (want != "") {
			t.Errorf("Authorization %q is of tenant %q, %v, want %q", header, tenant, err, want)
		}
	}
}
