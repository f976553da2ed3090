#!lua flags=allow-oom
-- Read one page of the tasks in one state, by creation, for a new leader. What changes between two pages comes as news.
-- A task after which a page begins may have left its list; then tasks of the same millisecond are read again.
-- Arguments: fence, state, most tasks, creation time and id of the last task so far ('' at the beginning)
-- Answers false if the caller does not lead, else {tasks {id, spec, attempt, after, created, deaths, state, worker,
--   placement}, waiting by priority level {level, number, ...}, creation time and id of the last task, '' at the end}
local fence, state, most, last_at, last = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
if not leads(fence) then return answer(fence, false) end

-- For rows that were stored before levels existed.
local function level_of(priority)
  priority = priority or 50
  return priority >= 90 and '3' or priority >= 75 and '2' or priority >= 50 and '1' or '0'
end

local key, from = P .. 's:' .. state, 0
if last ~= '' then
  local rank = redis.call('ZSCORE', key, last) == last_at and redis.call('ZRANK', key, last)
  from = rank and rank + 1 or redis.call('ZCOUNT', key, '-inf', '(' .. last_at)
end
local ids = redis.call('ZRANGE', key, from, from + most - 1)
local tasks, levels = {}, {}
for _, id in ipairs(ids) do
  local row = redis.call('HMGET', P .. 't:' .. id, 'spec', 'attempt', 'after', 'created', 'deaths', 'worker', 'place',
    'level', 'epoch')
  if row[1] and row[9] ~= DONE then -- a member of a gang that is done holds nothing
    tasks[#tasks + 1] = {id, row[1], tonumber(row[2]), tonumber(row[3]) or 0, tonumber(row[4]), row[5] or '', state,
      row[6] or '', row[7] or ''}
    if state == 'queued' then
      local level = row[8]
      if not level then
        level = level_of(cjson.decode(row[1]).priority)
        redis.call('HSET', P .. 't:' .. id, 'level', level)
      end
      levels[level] = (levels[level] or 0) + 1
    end
  end
end
local flat = {}
for level, waiting in pairs(levels) do
  flat[#flat + 1] = level
  flat[#flat + 1] = text(waiting)
end
local next_id = #ids == most and ids[#ids] or ''
local next_at = next_id ~= '' and redis.call('ZSCORE', key, next_id) or ''
return answer(fence, {tasks, flat, next_at, next_id})
