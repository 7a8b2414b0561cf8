package page

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onceward/onceward"
	oncewardmcp "github.com/onceward/onceward/adapter/mcp"
)

var (
	ctx       context.Context
	guard     *onceward.Guard
	server    *mcp.Server
	client    *mcp.Client
	transport func() mcp.Transport
	arguments map[string]any
)
