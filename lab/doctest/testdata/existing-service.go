package page

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
	"github.com/onceward/onceward/janitor"
	"github.com/onceward/onceward/store/postgres"
)

var callerOf onceward.ScopeFunc

func createTransfer(c *gin.Context)
