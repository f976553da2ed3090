-- Forget a file; what it lies in is deleted next.
-- Arguments: owner or '' for all, id
-- Answers 1 if there was one
local owner, id = ARG[1], ARG[2]
local key = P .. 'file:' .. id
local known = redis.call('HMGET', key, 'owner', 'bytes', 'at')
if not known[1] or not may_touch(owner, known[1]) then return cmsgpack.pack({{}, 0}) end
redis.call('DEL', key)
redis.call('ZREM', P .. 'files:' .. known[1], known[2] .. ' ' .. id)
redis.call('ZADD', P .. 'results', 'XX', 0, known[3])
return cmsgpack.pack({{}, 1})
