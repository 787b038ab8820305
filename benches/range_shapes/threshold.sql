SELECT count(t), max(t) FROM (SELECT (SELECT min(p.ts) FROM quotes p WHERE p.sym = q.sym AND p.ts >= q.ts AND p.price <= q.price_limit) AS t FROM orders q)
