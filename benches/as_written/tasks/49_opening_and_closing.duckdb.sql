-- The first and the last reading of each session.
SELECT s.id, first(p.v ORDER BY p.ts, p.id) AS first, last(p.v ORDER BY p.ts, p.id) AS last
FROM sessions s
JOIN points p ON p.s = s.s AND p.ts >= s.started AND p.ts < s.ended
GROUP BY s.id
