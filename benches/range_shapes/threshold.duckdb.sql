SELECT count(t), max(t) FROM (SELECT q.id, min(p.ts) AS t FROM orders q LEFT JOIN quotes p ON p.sym = q.sym AND p.ts >= q.ts AND p.price <= q.price_limit GROUP BY q.id)
